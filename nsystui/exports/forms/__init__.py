"""The forms of a report that are not SQLite. Each is converted into a SQLite export in the cache, once."""
