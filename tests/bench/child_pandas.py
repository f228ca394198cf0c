"""The kernel summary as a user of pandas writes it: ``child_pandas.py EXPORT``."""

from __future__ import annotations

import sys

import pandas as pd
import sqlalchemy as sa

QUERY = """SELECT s.value AS name, k."end" - k.start AS duration
FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"""


def main() -> None:
    with sa.create_engine(f"sqlite:///{sys.argv[1]}").connect() as connection:
        frame = pd.read_sql(sa.text(QUERY), connection)
    figures = ["sum", "count", "mean", "median", "min", "max", "std"]
    summary = frame.groupby("name")["duration"].agg(figures).sort_values("sum", ascending=False)
    summary.to_csv(sys.stdout)


if __name__ == "__main__":
    main()
