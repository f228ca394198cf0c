"""Answers as CSV, JSON, Markdown, Parquet or text tables, to stdout, files or the clipboard."""
