"""A whole report of a job as one page, its drawings, and the page without names."""
