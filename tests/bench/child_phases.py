"""Where the CPU time of a cold ``cuda_gpu_kern_sum`` goes, in a process of its own: ``child_phases.py EXPORT CACHE``.

Prints JSON: CPU seconds by phase.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path


def main() -> None:
    path, cache = map(Path, sys.argv[1:])
    figures = {"Python": time.process_time()}

    def lap(name: str, since: float) -> float:
        now = time.process_time()
        figures[name] = now - since
        return now

    mark = time.process_time()
    import sqlalchemy  # noqa: F401

    mark = lap("import of SQLAlchemy", mark)
    import duckdb  # noqa: F401

    mark = lap("import of DuckDB", mark)
    from nsystui.base.selection import Selection
    from nsystui.exports import opening, schema, sources
    from nsystui.exports.opening import ArrowReader
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.stats import report_of
    from nsystui.store.cache import Cache
    from nsystui.store.reader import CHUNK_ROWS
    from nsystui.store.session import Session

    mark = lap("import of the rest", mark)
    report, options = report_of("cuda_gpu_kern_sum")
    session = Session(cache=Cache(cache))
    session.add(path, whole=False)
    mark = lap("opening", mark)
    report.ask(OpenJob(session), Selection(), options)
    mark = lap("reading and answering", mark)
    report.ask(OpenJob(session), Selection(), options)
    mark = lap("answering alone", mark)

    native = schema.probe(path, opening.connect(path))
    source = next(one for one in sources.sources(native) if "kernels" in one.makes)
    scan = replace(source, columns={name: source.columns[name] for name in ("start", "end", "name_id")}).scan
    counting = session.database.cursor()
    with ArrowReader(path) as reader:
        for first in range(0, native.last_rowid[source.table] + 1, CHUNK_ROWS):
            rows = reader.stream(scan % (first, first + CHUNK_ROWS - 1))
            counting.register("arriving", rows)
            counting.execute("SELECT count(*) FROM arriving").fetchall()
            counting.unregister("arriving")
    lap("SQLite alone, to Arrow", mark)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
