"""Handing over to other tools: what Nsight Compute is asked, and what a trace for Perfetto or Paraver is made of."""
