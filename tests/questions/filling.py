"""Sessions over small exports that functions of a test fill, and programs as steps."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture

from nsystui.store.session import Session

START = 1_780_000_000_000_000_000
Fill = Callable[[Any], object]


def program(*ranges: tuple[int, int | None, str], launches: Iterable[tuple[Any, Any]] = ()) -> Fill:
    """Return a function that fills an export with ranges (start, end, name) and launches (call, work) of one thread."""

    def fill(export: Any) -> None:
        for one in ranges:
            export.range(*one)
        for call, work in launches:
            export.launch(call, work)

    return fill


class Sessions:
    """Sessions over exports; functions fill each through the result of ``wrap`` for its writer.

    Exports that functions of a module fill serve all of its tests, which must not add to them.
    """

    def __init__(self, factory: pytest.TempPathFactory, wrap: Callable[[ExportWriter], Any]) -> None:
        self._factory, self._wrap = factory, wrap
        self._kept: dict[tuple[Fill, ...], Session] = {}
        self._of_test: list[Session] = []

    def of(self, *fillers: Fill) -> Session:
        """Return a session over ``rank0``, ``rank1`` …, each 1 ms after the previous rank."""
        if fillers in self._kept:
            return self._kept[fillers]
        session, place = Session(cache=None), self._factory.mktemp("filled")
        if all(fill.__name__ == fill.__qualname__ for fill in fillers):
            self._kept[fillers] = session
        else:
            self._of_test.append(session)
        for rank, fill in enumerate(fillers):
            capture = Capture(utc_epoch_ns=START + rank * 1_000_000, environment={"RANK": str(rank)})
            with ExportWriter(place / f"rank{rank}.sqlite", session=capture) as writer:
                fill(self._wrap(writer))
            session.add(place / f"rank{rank}.sqlite")
        return session

    def end_test(self) -> None:
        """Close the sessions that other tests do not use."""
        while self._of_test:
            self._of_test.pop().close()

    def close(self) -> None:
        self.end_test()
        for session in self._kept.values():
            session.close()


class Steps:
    """The steps of a program: each call of a method here calls the method of a process when it is written."""

    def __init__(self, *steps: tuple[str, Any, Any]) -> None:
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **told: Steps(*self._steps, (name, values, told))

    def write(self, process: Any) -> Any:
        """Write the steps with the methods of a process, which is returned."""
        for name, values, told in self._steps:
            getattr(process, name)(*values, **told)
        return process

    def returning(self, expected: Any) -> Any:
        """Return a method for a class of programs, which writes the steps and returns the expected result."""
        return lambda process: (self.write(process), expected)[1]
