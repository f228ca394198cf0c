"""The ranks of a job beside each other: what each did, which are odd and why, their steps, and their time in a map."""
