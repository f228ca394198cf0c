"""Every table that a debug log gives, by the name that a user asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nsystui.base.answer import TableAnswer
from nsystui.questions.nccl_log.call_tables import calls_table, ops_table, sizes_table
from nsystui.questions.nccl_log.other_tables import lines_table, steps_table, tuning_table
from nsystui.questions.nccl_log.rank_tables import communicators_table, gpus_table, ranks_table
from nsystui.questions.nccl_log.summary import Summary


@dataclass(frozen=True)
class Table:
    """A table: its title, how it is made, and whether it is shown unasked (what has a row for each rank is not)."""

    title: str
    make: Callable[[Summary], TableAnswer]
    is_usual: bool = True


TABLES = {
    "steps": Table("Step time and TFLOPS per GPU, from the training's own lines", steps_table),
    "ops": Table("Calls and message sizes by op", ops_table),
    "sizes": Table("Calls by op and message size", sizes_table),
    "calls": Table("Calls by op, count and datatype", calls_table),
    "communicators": Table("Communicators, and which of their ranks are in the log", communicators_table),
    "ranks": Table("Ranks of each communicator, with their last opCount", ranks_table, is_usual=False),
    "gpus": Table("Calls of each GPU", gpus_table, is_usual=False),
    "tuning": Table("Algorithm and protocol, as NCCL chose them", tuning_table, is_usual=False),
    "lines": Table("Lines of the log", lines_table),
}
"""The tables in the order in which they are printed."""
