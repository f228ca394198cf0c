"""Queries on the open reports: conditions of a selection, statistics, pages, and the registry of questions."""
