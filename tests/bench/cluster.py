"""Ask questions of a packed job with and without workers; print times and bytes as JSON.

``cluster.py PACKED WORKERS QUESTION…``: 0 workers is this process alone. Cached results are removed before each
question; each process has answered a question before, so that imports do not count.
"""

import contextlib
import io
import json
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import distributed

from nsystui.cli import main
from nsystui.questions.job.on_dask import DaskWorkers


class _Moved:
    """Counts the tasks of a cluster and their bytes, there and back, as they are pickled."""

    def __init__(self) -> None:
        self.tasks = self.sent = self.received = 0
        submit, result = DaskWorkers._submit, DaskWorkers._result

        def submitted(workers: Any, task: Any) -> Any:
            self.tasks += 1
            self.sent += len(cloudpickle.dumps(task.compute)) + sum(len(str(one.path)) for one in task.reports)
            return submit(workers, task)

        def received(workers: Any, *words: Any) -> Any:
            found = result(workers, *words)
            self.received += len(pickle.dumps(found, protocol=5))
            return found

        DaskWorkers._submit, DaskWorkers._result = submitted, received  # type: ignore[method-assign]


def _ask(packed: Path, question: str, scheduler: str | None) -> str:
    name, *flags = question.split()
    where = ["--dask", scheduler] if scheduler else ["--no-cache"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        main([name, *where, str(packed), *flags, "--format", "csv"])
    return out.getvalue()


def _measured(packed: Path, questions: list[str], client: distributed.Client | None) -> Iterator[dict[str, Any]]:
    scheduler = client.scheduler.address if client is not None else None
    moved = _Moved()
    _ask(packed, "kernels", scheduler)
    for question in questions:
        for kept in packed.rglob("result*.bin"):
            kept.unlink()
        moved.tasks = moved.sent = moved.received = 0
        before = _cpu(client)
        wall, cpu = time.perf_counter(), time.process_time()
        answer = _ask(packed, question, scheduler)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        workers = [after - before[worker] for worker, after in _cpu(client).items()]
        yield {"question": question, "wall": wall, "cpu": cpu, "workers": workers, **vars(moved), "answer": answer}


def _cpu(client: distributed.Client | None) -> dict[str, float]:
    return {} if client is None else client.run(time.process_time)


def _run(packed: Path, workers: int, questions: list[str]) -> list[dict[str, Any]]:
    if not workers:
        return list(_measured(packed, questions, None))
    with (
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        return list(_measured(packed, questions, client))


if __name__ == "__main__":
    print(json.dumps(_run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
