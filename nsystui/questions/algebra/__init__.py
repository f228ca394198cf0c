"""Arithmetic on plain numbers: intervals, nesting, projections, distributions and statistics."""
