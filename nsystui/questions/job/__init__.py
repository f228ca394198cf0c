"""A job: its open reports, their ranks, and the computation of its answers, locally or on a Dask cluster."""
