"""NVTX: the ranges of a job with what the GPU did for each, as a tree to open and as tables.

``loading`` reads a report, ``ranges`` nests and projects what it read, ``paths`` and ``tree`` group the ranges by their
names, ``listing`` has the tables.
"""
