"""The time of the GPUs by category, their metrics, and the profiler's own overhead."""
