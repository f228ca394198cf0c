"""Copies between host and GPU by the memory of the host: pinned or pageable, how fast, and on whose stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.base.columns import Unit
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.conditions import duration, where
from nsystui.store import tables
from nsystui.store.session import Session

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
PINNED, PAGEABLE = "Pinned", "Pageable"
DIRECTIONS = {HOST_TO_DEVICE: "host-to-device", DEVICE_TO_HOST: "device-to-host"}


@dataclass(frozen=True)
class HostCopies:
    """The copies of one kind from or to one kind of host memory (``None``: the export does not say); time in ns.

    ``is_apart``: whether all of them run on streams that have no kernels.
    """

    kind: int
    memory: str | None
    count: int
    bytes: int
    time: int
    is_apart: bool

    @property
    def rate(self) -> float:
        """Bytes in a second."""
        return 1e9 * self.bytes / self.time if self.time else 0.0

    @property
    def words(self) -> str:
        """``device-to-host, pageable memory: 4 GiB at 2.0 GB/s``."""
        memory = "" if self.memory is None else f", {self.memory.lower()} memory"
        size = format_value(Unit.BYTES, self.bytes)
        return f"{DIRECTIONS[self.kind]}{memory}: {size} at {self.rate / 1e9:.1f} GB/s"


def host_copies(session: Session, selection: Selection) -> tuple[HostCopies, ...]:
    """The copies between host and GPUs, those that take longest first; not those between GPUs over the host."""
    memory, kernels = tables.memory_ops.c, tables.kernels
    streams = set(
        session.rows(
            sa.select(*(kernels.c[key] for key in ("report", "process", "device", "stream")))
            .where(*where(kernels, selection))
            .distinct()
        )
        if session.count(kernels)
        else ()
    )
    host = sa.case((memory.copy_kind == HOST_TO_DEVICE, memory.source_memory), else_=memory.target_memory)
    places = (memory.report, memory.process, memory.device, memory.stream)
    query = (
        sa.select(
            memory.copy_kind,
            host.label("host"),
            *places,
            sa.func.count(),
            sa.cast(sa.func.coalesce(sa.func.sum(memory.bytes), 0), sa.BigInteger),
            sa.cast(sa.func.coalesce(sa.func.sum(duration(tables.memory_ops)), 0), sa.BigInteger),
        )
        .where(*where(tables.memory_ops, selection), memory.copy_kind.in_(list(DIRECTIONS)))
        .where(sa.or_(host.is_(None), host != "Device"))
        .group_by(memory.copy_kind, host, *places)
    )
    found: dict[tuple[int, str | None], HostCopies] = {}
    for kind, name, *place, count, size, time in session.rows(query):
        is_apart = tuple(place) not in streams
        before = found.get((kind, name), HostCopies(kind, name, 0, 0, 0, True))
        found[kind, name] = HostCopies(
            kind, name, before.count + count, before.bytes + size, before.time + time, before.is_apart and is_apart
        )
    return tuple(sorted(found.values(), key=lambda one: (-one.time, one.kind, one.memory or "")))


def mostly(copies: Iterable[HostCopies], memory: str) -> bool:
    """Whether nine tenths of the time of copies are from or to this host memory."""
    every = list(copies)
    whole = sum(one.time for one in every)
    return bool(whole) and sum(one.time for one in every if one.memory == memory) >= 0.9 * whole
