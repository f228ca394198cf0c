"""The views of sessions with hundreds of reports."""

from __future__ import annotations

from contextlib import closing

import pytest

from nsystui.exports import canonical
from nsystui.store.database import Limits, connect
from nsystui.store.relations import Rows, make_view


@pytest.mark.parametrize("reports", [0, 1, 64, 65, 600])
def test_a_view_has_the_rows_of_every_report_once(reports):
    with closing(connect(Limits())) as database:
        database.execute("CREATE TABLE rows AS SELECT range AS start FROM range(3)")
        for _ in range(2):  # made anew when a report joins
            make_view(database, canonical.KERNELS, [Rows(report, 0, table="rows") for report in range(reports)])
        found = database.cursor().execute("SELECT count(*), count(DISTINCT report) FROM kernels").fetchone()
        assert found == (3 * reports, reports)
