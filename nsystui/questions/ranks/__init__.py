"""Comparisons of the ranks of a job: their work, odd ranks and reasons, their steps, and maps of their time."""
