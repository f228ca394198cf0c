"""The CPU side: what ran on which thread, as sampled and as scheduled, and what the GPUs waited for."""
