"""What was sampled over time: GPU metrics as tables, network adapters, AWS EFA."""
