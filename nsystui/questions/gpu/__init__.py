"""The time of the GPUs by category, their metrics, and what the profiler itself took of them."""
