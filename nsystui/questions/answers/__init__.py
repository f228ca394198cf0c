"""Answers of the catalogue: asked, remembered in the cache, packed, and the schemas of what they print."""
