"""Ten jobs of a triage session on the demo job, from the overview, counted in keys; no time is typed."""

from __future__ import annotations

import csv
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from jobs import WIDE, line_with, name_of_screen, running, screen_text
from support import native
from synthetic.demo import TrainingJob

from nsystui.base.selection import Selection
from nsystui.questions.stats import report_of

pytestmark = [pytest.mark.findings, pytest.mark.campaign]

KERNELS = "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"


@pytest.fixture(scope="module")
def job(written_once):
    return written_once("session", TrainingJob().write)


class Session:
    """Presses keys and counts them."""

    def __init__(self, app, pilot) -> None:
        self.app, self._pilot, self.keys = app, pilot, 0

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        self.keys += len(keys)

    async def start_again(self) -> None:
        """Back to the overview, at its first finding."""
        while name_of_screen(self.app) != "OverviewScreen" or not self.app.selection.is_everything:
            await self._pilot.press("escape")
        self.app.screen.findings.move_to(0)
        self.keys = 0

    @property
    def values(self):
        return self.app.screen.values()

    @property
    def text(self) -> str:
        return "\n".join(screen_text(self.app))

    def place_of_finding(self, name: str) -> int:
        rows = self.app.screen.findings.answer.records()
        return next(number for number, row in enumerate(rows) if str(row["id"]).endswith(name))


@asynccontextmanager
async def session(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        assert app.screen.findings.row_count
        yield Session(app, pilot)


def longest_of_most_expensive(job: list[Path]) -> tuple[str, int]:
    """The kernel with the largest total over all ranks, and its longest launch, ns."""
    total: dict[str, int] = {}
    longest: dict[str, int] = {}
    for path in job:
        for name, time, most in native(
            path, f"SELECT s.value, sum(k.end - k.start), max(k.end - k.start) {KERNELS} GROUP BY 1"
        ):
            total[name] = total.get(name, 0) + time
            longest[name] = max(longest.get(name, 0), most)
    name = max(total, key=total.__getitem__)
    return name, longest[name]


async def test_from_the_findings_to_the_cause_and_its_evidence(job, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with session(job, cache) as user:
        line_with(user.app, "Rank 2 ")
        await user.press(*["down"] * user.place_of_finding("straggler"), "enter")  # the slowest rank
        assert name_of_screen(user.app) == "FindingScreen" and "Rank 2" in user.text
        assert user.values["rank"] == 2 and user.values["late"] > 0
        await user.press("e", "enter")
        (written,) = tmp_path.iterdir()
        with written.open(encoding="utf-8", newline="") as file:
            assert "2" in [row["Rank"] for row in csv.DictReader(file)]
        assert user.keys <= 5

        await user.start_again()
        await user.press(*["down"] * user.place_of_finding("slow-steps"), "enter")
        slow, start, length = (user.values[key] for key in ("slow", "start", "max"))
        await user.press("t")
        window = user.app.selection.window
        assert slow and (window.start, window.end) == (start, start + length)
        for key in "23":
            await user.press(key)
            assert user.app.selection.window == window
        assert user.keys <= 8

        await user.start_again()
        await user.press(*["down"] * user.place_of_finding("idle-gaps"), "enter")
        assert "cudaMalloc" in user.text and "data loading" in user.text and user.keys <= 4
        await user.press("L")
        assert user.app.current_mode == "timeline" and "cudaMalloc" in user.text and user.keys <= 5


async def test_from_the_most_expensive_kernel_to_the_range_of_its_longest_launch_and_back(job, cache):
    async with session(job, cache) as user:
        name, longest = longest_of_most_expensive(job)
        await user.press("2", "enter")
        assert name_of_screen(user.app) == "KernelInstancesScreen" and user.app.screen.kernel == name
        assert user.values["duration"] == longest
        await user.press("enter")
        assert (user.values["name"], user.values["duration"]) == (name, longest)
        rank, correlation_id = int(user.values["rank"]), user.values["correlation_id"]
        await user.press("c")
        assert (user.values["kind"], user.values["correlation_id"]) == ("api", correlation_id)
        await user.press("w")
        node = user.app.screen.node()
        ((call, thread),) = native(
            job[rank],
            "SELECT start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId = ?",
            (correlation_id,),
        )
        ((start, end),) = native(
            job[rank],
            "SELECT start, end FROM NVTX_EVENTS WHERE start <= ? AND end >= ? AND globalTid = ? "
            "ORDER BY start DESC LIMIT 1",
            (call, call, thread),
        )
        assert node.rank == rank or node.rank is None
        assert node.window.end - node.window.start == end - start and user.keys <= 7
        await user.press(*["escape"] * 5)  # back is one key a step
        assert user.app.current_mode == "overview" and user.app.selection.is_everything

        user.keys = 0
        await user.press("2", "enter", "L")
        assert user.app.current_mode == "timeline"
        _, row = user.app.screen.row_to_copy()
        assert (row[2], row[3]) == (name, longest) and user.keys <= 4
        await user.press("slash", *"cudaMalloc", "enter", "n")  # the next match is one key
        assert "cudaMalloc" in str(user.app.screen.row_to_copy()[1][2])


async def test_layers_sizes_ranks_and_steps(job, cache):
    async with session(job, cache) as user:
        report, options = report_of("nvtx_gpu_proj_sum")
        found = report.ask(user.app.job, Selection(), options).records()
        layers = {str(row["name"]).lstrip(":"): row for row in found if "layer_" in str(row["name"])}
        totals = {name: next(v for k, v in row.items() if k == "total") for name, row in layers.items()}
        forward = {name: total for name, total in totals.items() if "backward" not in name}
        await user.press("5")
        assert max(forward, key=forward.__getitem__) in line_with(user.app, "layer_") and user.keys <= 1

        await user.start_again()
        await user.press("3", "v", "v")
        line_with(user.app, "[sizes]")
        largest = max(user.app.screen.table.answer.records(), key=lambda row: row["message_size"])
        assert largest["busbw"] and largest["busbw_without_wait"]
        line_with(user.app, "busbw w/o wait")
        assert user.keys <= 4

        await user.start_again()
        await user.press("7", "x", "down", "x")
        line_with(user.app, "Comparison")
        assert user.keys <= 5

        await user.start_again()
        await user.press("9", "v", "v")
        line_with(user.app, "[across]")
        start, length = user.values["start"], user.values["max"]
        await user.press("t")
        for key, mode in (("2", "kernels"), ("3", "nccl"), ("L", "timeline")):
            await user.press(key)
            window = user.app.selection.window
            assert (user.app.current_mode, window.start, window.end) == (mode, start, start + length)
        assert user.keys <= 8
