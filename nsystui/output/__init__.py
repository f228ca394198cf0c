"""Answers written out: CSV, JSON, Markdown, Parquet, text tables, to stdout, files or the clipboard."""
