"""The views of sessions with hundreds of reports."""

from contextlib import closing

import pytest

from nsystui.exports import canonical
from nsystui.store.database import Limits, connect
from nsystui.store.views import Rows, make_view


@pytest.mark.campaign
@pytest.mark.parametrize("reports", [0, 1, 64, 65, 130])
def test_a_view_has_the_rows_of_every_report_once(reports):
    with closing(connect(Limits())) as database:
        database.execute("CREATE TABLE rows AS SELECT range AS start FROM range(3)")
        for _ in range(2):  # made anew when a report joins
            make_view(database, canonical.KERNELS, [Rows(report, 0, table="rows") for report in range(reports)])
        found = database.cursor().execute("SELECT count(*), count(DISTINCT report) FROM kernels").fetchone()
        assert found == (3 * reports, reports)


def test_files_of_several_reports_are_one_reading(tmp_path):
    with closing(connect(Limits())) as database:
        files = [str(tmp_path / f"it's {number}.parquet") for number in range(4)]
        for number, file in enumerate(files):
            database.execute(f"COPY (SELECT {number} AS start, 'a' AS here) TO $1 (FORMAT parquet)", [file])
        first, second, third, last = files
        # The fourth is the same export again.
        some = ((0, 10, (first, second)), (2, -5, (third,)), (3, 7, (last,)), (4, 1 << 40, (first,)))
        rows = [Rows(*one, renamed=("name", "here")) for one in some]
        rows.append(Rows(5, 0, (last,), columns=frozenset({"start", "here"})))
        make_view(database, canonical.KERNELS, rows[:-1])
        found = database.execute("SELECT * FROM kernels").fetchall()
        assert found == [(0, 10, 0, "a"), (0, 10, 1, "a"), (2, -5, 2, "a"), (3, 7, 3, "a"), (4, 1 << 40, 0, "a")]
        assert database.execute("SELECT sql FROM duckdb_views WHERE NOT internal").fetchall()[0][0].count("scan(") == 2
        only = "SELECT start FROM kernels WHERE report = 2"
        assert database.execute(only).fetchall() == [(2,)]
        plan = str(database.execute(f"EXPLAIN ANALYZE {only}").fetchall())
        assert "Total Files Read: 1" in plan or "Scanning Files: 1/3" in plan, plan
        make_view(database, canonical.KERNELS, rows, ["start"])
        assert database.execute("SELECT * FROM kernels WHERE report > 3").fetchall() == [(4, 1 << 40, 0), (5, 0, 3)]
