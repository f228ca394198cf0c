"""The timeline: lanes of ranks, GPUs, streams and NVTX threads on the job's clock, with their events."""
