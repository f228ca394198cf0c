"""Training steps: where they begin and end, and the work of each."""
