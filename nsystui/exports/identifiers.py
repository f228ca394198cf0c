"""NVIDIA's global ids of processes and threads: what is in their bits (docs/exports.md#identifiers).

``<hardware:8><virtual machine:8><process:24><thread:24>``; a process has zeros for the thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import sqlalchemy as sa

_BITS = 24
_MASK = (1 << _BITS) - 1

Ids = TypeVar("Ids")
"""One id, or a numpy array of ids."""


def pid_of(global_id: Ids) -> Ids:
    """The process number in the id of a process or a thread."""
    return (global_id >> _BITS) & _MASK  # type: ignore[operator,return-value]


def tid_of(thread: Ids) -> Ids:
    """The thread number in the id of a thread."""
    return thread & _MASK  # type: ignore[operator,return-value]


def process_of(thread: Ids) -> Ids:
    """The id of the process that a thread belongs to."""
    return thread & ~_MASK  # type: ignore[operator,return-value]


def process_id(pid: int, of_machine: int = 0) -> int:
    """The id of a process by its number; ``of_machine`` are the bits above."""
    return of_machine | pid << _BITS


def pid_column(global_id: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """`pid_of` in SQL."""
    return tid_column(global_id.op(">>")(_BITS))


def tid_column(thread: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """`tid_of` in SQL."""
    return thread.op("&")(_MASK)
