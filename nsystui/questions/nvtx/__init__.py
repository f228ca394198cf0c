"""NVTX ranges of a job with their GPU work, as a tree to open and as tables.

``loading`` reads a report, ``ranges`` nests and projects its ranges, ``paths`` and ``tree`` group them by name, and
``listing`` has the tables.
"""
