"""Opens everything of an export into a cache, in a process of its own: ``child_packing.py EXPORT CACHE``."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from nsystui.questions.answers.remembered import remember_first_questions
from nsystui.questions.job.job import OpenJob
from nsystui.store.cache import Cache
from nsystui.store.session import Session


def main() -> None:
    path, cache = map(Path, sys.argv[1:])
    wall, cpu = time.perf_counter(), time.process_time()
    session = Session(cache=Cache(cache))
    session.add(path)
    figures = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    # What the application does then, so that later measurements find the same cache.
    remember_first_questions(OpenJob(session), Cache(cache))
    session.close()
    print(json.dumps({**figures, "peak": peak}))


if __name__ == "__main__":
    main()
