"""GPU memory: how much was allocated, by which calls, and the copies between host and GPU."""
