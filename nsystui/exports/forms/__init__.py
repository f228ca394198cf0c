"""The forms of a report that are not SQLite; each is converted into a SQLite export in the cache, once."""
