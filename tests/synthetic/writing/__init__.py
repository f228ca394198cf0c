"""Writes exports as nsys would: `ExportWriter` (in `writer`) writes single events, for the demo and for the reader of
PyTorch's traces. Standard library only. Tests have a writer of more kinds of events, which is built on this one.
"""
