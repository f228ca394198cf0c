"""Triage: what is wrong with a job, worst first, each finding with its cost, its evidence and what to try."""
