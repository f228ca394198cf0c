"""Triage: what is wrong with a job, worst first, each finding with its cost, its evidence and how to fix it."""
