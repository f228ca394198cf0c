"""Writes exports as nsys would: `ExportWriter` (in `writer`) writes the events that the demo jobs have.

`synthetic.writer` adds all others. Standard library only.
"""
