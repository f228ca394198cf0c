"""A report of a job as one page, its drawings, and its anonymous form."""
