"""Modules that every room uses: errors, text, units, columns, answers, selection, resources, terminal."""
