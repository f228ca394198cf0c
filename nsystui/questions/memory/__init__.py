"""GPU memory: allocations, the calls that made them, and copies between host and GPU."""
