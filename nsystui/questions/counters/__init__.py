"""Samples over time: GPU metrics as tables, network adapters, AWS EFA."""
