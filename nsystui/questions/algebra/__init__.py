"""Arithmetic of the questions on numbers alone: intervals, nesting, projections, distributions and statistics."""
