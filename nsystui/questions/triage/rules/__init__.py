"""The rules of the triage, a module for each."""
