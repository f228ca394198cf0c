"""The ranks of a job next to each other: the work of each, odd ranks and why, their steps, and their time in a map."""
