"""Methods of finding steps (`questions.steps.times`), as words of the command line."""

NVTX, OPTIMIZER, COLLECTIVES, GRAPH, KERNELS = ANCHORS = ("nvtx", "optimizer", "collectives", "graph", "kernels")
"""In the order in which they are tried."""
