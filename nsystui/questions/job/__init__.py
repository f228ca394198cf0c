"""A job: its open reports, who is which rank, and how its questions are answered, here or on a Dask cluster."""
