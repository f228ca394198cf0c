"""The CPU side: the threads' work, as sampled and as scheduled, and the GPUs' idle time."""
