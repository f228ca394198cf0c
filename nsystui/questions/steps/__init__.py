"""Training steps: their beginnings and ends, and the work of each."""
