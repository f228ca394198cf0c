"""The questions as data: each module declares some in ``QUESTIONS``, which `queries.question` reads."""
