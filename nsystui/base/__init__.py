"""Shared by every room: errors, text, units, columns, answers, the selection, resources and the terminal."""
