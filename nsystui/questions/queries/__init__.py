"""Queries on the open reports: conditions of a selection, statistics, pages, and questions as data."""
