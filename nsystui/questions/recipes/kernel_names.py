"""The kernels that ``--name`` means: by any of the names that a kernel has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.errors import UsageError, meant
from nsystui.questions.conditions import Condition
from nsystui.questions.kernels import Names, name_of
from nsystui.store import tables
from nsystui.store.session import Session

_KERNELS = tables.kernels


@dataclass(frozen=True)
class NamedKernels:
    """The kernels of which the name of the form ``names`` is ``name``; ``count``: how many full names they have."""

    name: str
    names: Names
    count: int

    @property
    def are_meant(self) -> Condition:
        return name_of(_KERNELS, self.names) == self.name


def named_kernels(session: Session, name: str, names: Names) -> NamedKernels:
    """The kernels with the name: of the form ``names``, where there are any, else of another form.

    Raises UsageError where no kernel of the session has it, selected or not.
    """
    for form in dict.fromkeys((names, *Names)):
        found = NamedKernels(name, form, 0)
        count = session.scalar(sa.select(sa.func.count(_KERNELS.c.name.distinct())).where(found.are_meant))
        if count:
            return NamedKernels(name, form, int(count))
    short: sa.Select[Any] = sa.select(_KERNELS.c.short_name).where(_KERNELS.c.short_name.is_not(None)).distinct()
    known = sorted(text for (text,) in session.rows(short))
    hint = meant(name, known, "write a whole name of a kernel, full, short or mangled, as `nsystui kernels` lists them")
    raise UsageError(f"no kernel is called {name!r}: {hint}")
