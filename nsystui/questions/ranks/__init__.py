"""Comparisons of a job's ranks: work, odd ranks and reasons, steps, and maps of their time."""
