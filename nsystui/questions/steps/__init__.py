"""Training steps: beginnings, ends, and work."""
