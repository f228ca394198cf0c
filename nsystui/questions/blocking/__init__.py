"""What blocked a GPU: dependencies, the parts of an iteration, the critical path."""
