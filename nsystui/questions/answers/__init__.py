"""Answers of the catalogue: computed, remembered in the cache, packed, and described by JSON schemas."""
