"""The CPU side: what ran on which thread, sampled and as the scheduler saw it, and what it meant for the GPUs."""
