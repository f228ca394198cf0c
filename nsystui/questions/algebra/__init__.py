"""Arithmetic on arrays of numbers: intervals, nesting, projections and statistics of groups."""
