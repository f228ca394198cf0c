"""Triage: the problems of a job, worst first, each with its cost, its evidence and advice."""
