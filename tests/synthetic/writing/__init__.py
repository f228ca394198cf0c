"""A writer of exports in the form of nsys: `ExportWriter` (in `writer`) writes the events of the demo jobs.

`synthetic.writer` adds all other events. Standard library only.
"""
