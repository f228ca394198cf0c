"""NCCL's debug log on the screen: its tables and their keys, alone and beside exports, while it is being read."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness import Terminal
from jobs import NARROW, WIDE, becomes, line_with, screen_text
from synthetic import training_job

from nsystui.cli import main
from nsystui.exports.nccl_log.files import OpenLog
from nsystui.questions.nccl_log.steps import steps_of
from nsystui.questions.opening import Source
from nsystui.ui import loading
from nsystui.ui.app import LogApp, NsystuiApp
from nsystui.ui.loading import LogLoading, LogState
from nsystui.ui.screens.nccl_log import NcclLogScreen

SHARED = Path(__file__).parents[3] / "shared/data/nccl-logs"
HEAVY = {"pandas", "numpy", "sqlalchemy", "duckdb", "pyarrow"}

INIT = (
    "n{rank}:{pid}:7 [0] NCCL INFO comm 0xc{rank} rank {rank} nranks 2 cudaDev 0 busId b000 commId 0xfe - "
    "Init COMPLETE\n"
)
CALL = (
    "n{rank}:{pid}:7 [0] NCCL INFO {op}: opCount {n:x} sendbuff 0x1 recvbuff 0x2 count {count} datatype 7 op 0 root 0 "
    "comm 0xc{rank} [nranks=2] stream 0x3\n"
)
TUNING = "n0:1:7 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}\n"


def log_text(calls: int = 3) -> str:
    """Two ranks on two hosts: AllReduces of 4 KiB, and one Reduce of 4 MiB on rank 0 alone."""
    lines = [INIT.format(rank=rank, pid=rank + 1) for rank in (0, 1)]
    lines += [
        CALL.format(rank=rank, pid=rank + 1, op="AllReduce", n=n, count=1024) for n in range(calls) for rank in (0, 1)
    ]
    return "".join([*lines, CALL.format(rank=0, pid=1, op="Reduce", n=calls, count=2**20), TUNING])


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "nccl.0.log"
    path.write_text(log_text())
    return path


@pytest.fixture(scope="module")
def job(written_once, cache):
    files = written_once("beside-a-log", lambda directory: training_job(directory, ranks=2, steps=2))
    return cache.parent, tuple(map(str, files))


@contextlib.asynccontextmanager
async def open_logs(*logs: Path, size=NARROW, steps: str | None = None):
    log_steps = None if steps is None else steps_of(steps)
    app = LogApp(Source((), logs=tuple(map(str, logs)), log_steps=log_steps))
    async with app.run_test(size=size) as pilot:
        line_with(app, "calls in")
        yield app, pilot


@contextlib.asynccontextmanager
async def open_both(job, *logs: Path):
    directory, exports = job
    app = NsystuiApp(Source(exports, directory / "cache", logs=tuple(map(str, logs))))
    async with app.run_test(size=WIDE) as pilot:
        line_with(app, "nsystui")
        await becomes(pilot, lambda: not app.loading_now)
        await pilot.press("3")
        line_with(app, "4 of 4" if not logs else "kernel")
        yield app, pilot


def has(app, words: str) -> bool:
    return any(words in line for line in screen_text(app))


async def type_in(app, pilot, text: str) -> None:
    app.screen.prompt.value = text
    await pilot.press("enter")
    await pilot.pause()


class TestTables:
    async def test_it_opens_with_the_ops_and_names_the_other_tables(self, log):
        async with open_logs(log) as (app, _):
            assert screen_text(app)[0].startswith("nsystui")
            assert "nccl.0.log · " in screen_text(app)[1]
            assert screen_text(app)[2].startswith("by [ops] sizes  calls  communicators  ranks  gpus  tuning  lines")
            assert line_with(app, "no steps in it")
            assert "AllReduce" in line_with(app, " 24")
            assert "7 calls in 10 lines; 0 more could not be read" in line_with(app, "calls in")

    async def test_steps_choose_what_is_counted_and_stand_above_the_tables(self, tmp_path):
        path = tmp_path / "train.log"
        text = [INIT.format(rank=0, pid=1)]
        for number in (4, 5, 6):
            text += [f"Training epoch 0, iteration {number}/9 | x\n"]
            text += [CALL.format(rank=0, pid=1, op="AllReduce", n=number, count=1024)] * number
        path.write_text("".join(text))
        async with open_logs(path, steps="5:") as (app, _pilot):
            line_with(app, "steps 5:")
            assert app.nccl_log.calls == 11
            (said,) = [note for note in app.nccl_log.tables["ops"].notes if note.startswith("--steps")]
            assert said.startswith("--steps chose 2 training lines, 4 calls left out")

    async def test_steps_that_no_log_has_are_told_with_those_that_are_there(self, tmp_path):
        path = tmp_path / "train.log"
        path.write_text("Training epoch 0, iteration 4/9 | x\n" + log_text())
        app = LogApp(Source((), logs=(str(path),), log_steps=steps_of("7:8")))
        async with app.run_test():
            line_with(app, "none of the iterations is in these logs: they have 4 to 4")

    async def test_o_goes_through_the_tables_that_have_rows_and_back(self, log):
        async with open_logs(log) as (app, pilot):
            seen = []
            for _ in range(8):
                seen.append(app.screen.name_of_table)
                await pilot.press("b")
            assert seen == ["ops", "sizes", "calls", "communicators", "ranks", "gpus", "tuning", "lines"]
            assert app.screen.name_of_table == "ops"
            await pilot.press("B")
            line_with(app, "[lines]")
            await pilot.press("tab", "tab")
            line_with(app, "[sizes]")

    @pytest.mark.parametrize(
        ("way", "crumb", "rows"),
        [
            (("down", "enter"), "AllReduce calls", 1),
            (("b", "enter"), "Reduce 1MiB–16MiB calls", 1),
            (("b", "b", "b", "enter"), "0xfe ranks", 2),
            (("b", "b", "b", "b", "b", "enter"), "n0 pid 1 device 0 ranks", 1),
        ],
    )
    async def test_enter_opens_what_a_row_is_made_of(self, log, way, crumb, rows):
        async with open_logs(log) as (app, pilot):
            *before, enter = way
            await pilot.press(*before)
            row = app.screen.table.cursor_row
            await pilot.press(enter)
            line_with(app, crumb)
            assert len(app.screen.table.answer) == rows
            await pilot.press("b")
            line_with(app, "cannot be grouped otherwise")
            await pilot.press("escape")
            await becomes(pilot, lambda: len(app.screen_stack) == 1)
            assert app.screen.table.cursor_row == row

    async def test_an_op_that_is_part_of_another_ones_name_is_opened_alone(self, log):
        async with open_logs(log) as (app, pilot):
            assert app.screen.values()["op"] == "Reduce"
            await pilot.press("enter")
            line_with(app, "Reduce calls")
            assert {row[1] for row in app.screen.table.answer.rows} == {"Reduce"}

    async def test_ranks_of_communicators_that_no_line_names(self, tmp_path):
        path = tmp_path / "calls.log"
        path.write_text("".join(line for line in log_text().splitlines(True) if "COMPLETE" not in line))
        async with open_logs(path) as (app, pilot):
            await pilot.press("b", "b", "b", "enter")
            line_with(app, "2 without a name ranks")
            assert len(app.screen.table.answer) == 2

    async def test_where_the_log_tells_no_more_it_says_so(self, log):
        async with open_logs(log) as (app, pilot):
            await pilot.press("b", "b", "enter")
            line_with(app, "a log tells no more of this row")

    async def test_rows_are_sorted_and_each_table_has_its_own_order(self, log):
        async with open_logs(log) as (app, pilot):
            assert app.screen.table.sorted_by == ("total_bytes", True)
            await pilot.press("s", "s")
            assert [row[0] for row in app.screen.table.answer.rows] == ["AllReduce", "Reduce"]
            await pilot.press("b")
            assert app.screen.table.sorted_by is None


class TestFilter:
    async def test_it_is_for_all_tables_and_esc_takes_it_away(self, log):
        async with open_logs(log) as (app, pilot):
            await pilot.press("slash")
            await type_in(app, pilot, "allr")
            line_with(app, "1 of 2 rows")
            assert 'filter "allr"' in screen_text(app)[1]
            await pilot.press("b")
            line_with(app, "1 of 2 rows")
            await pilot.press("escape")
            line_with(app, "2 of 2 rows")
            assert "filter" not in screen_text(app)[1]
            await pilot.press("escape")
            line_with(app, "nothing to go back to")

    async def test_keys_while_the_log_is_read_anew_wait_for_it(self, log):
        async with open_logs(log) as (app, pilot):
            await pilot.press("slash")
            await type_in(app, pilot, "Reduce")
            read, app.nccl_log = app.nccl_log, LogState(app.source.logs)
            await pilot.press("escape")
            line_with(app, "reading")
            await pilot.press("b")
            line_with(app, "cannot be grouped otherwise")
            app.nccl_log = read
            app.screen.log_changed()
            line_with(app, "[ops]")

    async def test_what_finds_nothing_says_how_to_go_on(self, log):
        async with open_logs(log) as (app, pilot):
            await pilot.press("f")
            await type_in(app, pilot, "/^AllG/")
            line_with(app, 'none of the 2 rows has the words "/^AllG/": Esc takes the filter away')

    async def test_a_bad_one_is_told_in_the_prompt(self, log):
        async with open_logs(log) as (app, pilot):
            await pilot.press("slash")
            await type_in(app, pilot, "/(/")
            assert app.screen.prompt.is_open and app.screen.words is None


class TestKeys:
    async def test_e_writes_what_the_command_prints_byte_for_byte(self, log, tmp_path, capsys):
        async with open_logs(log) as (app, pilot):
            for name in ("ops", "sizes", "calls"):
                await pilot.press("e")
                assert app.screen.prompt.value == f"nccl.0-nccl-log-{name}.csv"
                await type_in(app, pilot, str(tmp_path / f"{name}.csv"))
                line_with(app, "wrote ")
                await pilot.press("b")
        for name in ("ops", "sizes", "calls"):
            assert main(["nccl-log", str(log), "--tables", name, "--format", "csv"]) == 0
            assert (tmp_path / f"{name}.csv").read_text() == capsys.readouterr().out

    async def test_several_logs_are_named_by_their_table(self, log, tmp_path):
        other = tmp_path / "nccl.1.log"
        other.write_text(log_text())
        async with open_logs(log, other) as (app, pilot):
            assert screen_text(app)[1].startswith("2 logs · ")
            await pilot.press("e")
            assert app.screen.prompt.value == "nccl-log-ops.csv"

    async def test_y_copies_the_row(self, log):
        async with open_logs(log) as (app, pilot):
            await pilot.press("y")
            assert app.clipboard.startswith("Reduce\t1\t")

    @pytest.mark.parametrize("key", ["t", "r", "D", "T"])
    async def test_keys_of_the_selection_say_that_it_is_of_exports(self, log, key):
        async with open_logs(log) as (app, pilot):
            await pilot.press(key)
            line_with(app, "the selection is of exports")

    async def test_keys_of_screens_that_are_not_there_say_how_to_get_them(self, log):
        async with open_logs(log) as (app, pilot):
            await pilot.press("2")
            line_with(app, "--nccl-log")
            assert isinstance(app.screen, NcclLogScreen)

    async def test_help_has_the_keys_that_act_here_and_no_others(self, log):
        async with open_logs(log, size=WIDE) as (app, pilot):
            await pilot.press("question_mark")
            line_with(app, "next and previous grouping")
            for absent in ("NVTX tree", "select ranks", "time window"):
                assert not has(app, absent)


class Gate:
    """Lets the reading of logs go on after the first piece of each only when it is opened."""

    def __init__(self, monkeypatch):
        self.event = threading.Event()
        read, event = OpenLog.read, self.event

        def gated(log: OpenLog, size: int) -> bytes:
            if log.position:
                event.wait(20)
            return read(log, size)

        monkeypatch.setattr(OpenLog, "read", gated)
        monkeypatch.setattr(loading, "FIRST_TABLES", 0.0)
        monkeypatch.setattr(loading, "LINES_AT_ONCE", 10)


class TestReading:
    @pytest.fixture
    def long_log(self, tmp_path) -> Path:
        path = tmp_path / "long.log"
        path.write_text(log_text(calls=3000))
        return path

    async def test_tables_grow_stop_and_are_read_again(self, long_log, monkeypatch):
        gate = Gate(monkeypatch)
        app = LogApp(Source((), logs=(str(long_log),)))
        async with app.run_test(size=WIDE) as pilot:
            line_with(app, "reading log")
            line_with(app, "AllReduce")
            assert 0 < app.nccl_log.calls < 6001
            await pilot.press("b", "escape")
            line_with(app, "stopping…")
            gate.event.set()
            line_with(app, "R resumes reading")
            assert app.nccl_log.is_stopped and app.nccl_log.calls < 6001
            assert app.screen.name_of_table == "sizes"
            await pilot.press("R")
            line_with(app, "6,001 calls")
            assert not has(app, "R resumes reading") and not has(app, "reading log")

    async def test_it_ends_at_once_when_the_program_is_left(self, long_log, monkeypatch):
        gate = Gate(monkeypatch)
        app = LogApp(Source((), logs=(str(long_log),)))
        async with app.run_test(size=WIDE) as pilot:
            line_with(app, "reading log")
            await pilot.press("q")
            gate.event.set()
        assert app.return_code == 0
        assert not app.nccl_log.is_over or app.nccl_log.is_stopped

    async def test_what_cannot_be_read_is_told_and_the_rest_is_there(self, log, tmp_path):
        async with open_logs(log, tmp_path / "gone.log") as (app, _pilot):
            line_with(app, "not read: ")
            assert "gone.log: no such file" in " ".join(screen_text(app))
            assert app.nccl_log.calls == 7

    async def test_without_any_log_the_program_ends_with_the_reasons(self, tmp_path):
        app = LogApp(Source((), logs=(str(tmp_path / "gone.log"),)))
        async with app.run_test() as pilot:
            await becomes(pilot, lambda: app.return_code is not None)
        assert app.return_code == 2
        assert "no such file" in app.reasons[0]

    async def test_a_log_without_calls_says_what_to_record(self, tmp_path):
        path = tmp_path / "bare.log"
        path.write_text("n0:1:7 [0] NCCL INFO NET/IB : No device found.\n")
        app = LogApp(Source((), logs=(str(path),)))
        async with app.run_test():
            line_with(app, "no calls of NCCL in 1 lines: record with NCCL_DEBUG=INFO")

    def test_an_error_that_nobody_thought_of_ends_the_reading(self, log, monkeypatch):
        def fail(*_):
            raise RuntimeError("a bug")

        monkeypatch.setattr("nsystui.exports.nccl_log.lines.LogReader.read", fail)
        loading = LogLoading([str(log)], lambda _: None)
        loading.start()
        assert loading.state.is_over and loading.state.failed == "not read: a bug"

    @pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not on this machine")
    @pytest.mark.parametrize(("number", "path"), enumerate(sorted(SHARED.glob("*.log"))), ids=str)
    async def test_every_table_of_real_logs_is_painted(self, number, path):
        async with open_logs(path, size=(NARROW, WIDE)[number % 2]) as (app, pilot):
            for _ in range(9):
                await pilot.press("down", "s", "s", "enter", "escape", "b")
                await pilot.pause()
                assert has(app, f"[{app.screen.name_of_table}]")


class TestBesideExports:
    async def test_l_opens_the_log_and_esc_goes_back(self, job, log):
        async with open_both(job, log) as (app, pilot):
            assert has(app, "[kernels]")
            line_with(app, "7 calls of 2 ranks, 4.023 MiB")
            await pilot.press("V")
            line_with(app, "[log]")
            await pilot.press("2")
            line_with(app, "2 Kernels")
            await pilot.press("3", "3")
            await becomes(pilot, lambda: app.screen.__class__.__name__ == "NcclScreen")
            assert has(app, "kernel")

    async def test_without_a_log_there_is_no_view_of_it(self, job):
        directory, exports = job
        app = NsystuiApp(Source(exports, directory / "cache"))
        async with app.run_test(size=WIDE) as pilot:
            await becomes(pilot, lambda: not app.loading_now)
            await pilot.press("3")
            line_with(app, "[kernels]")
            assert "log" not in screen_text(app)[2] and not has(app, "NCCL log")

    async def test_a_log_that_cannot_be_read_leaves_the_exports_as_they_are(self, job, tmp_path):
        async with open_both(job, tmp_path / "gone.log") as (app, _pilot):
            line_with(app, "NCCL log: not read: ")
            assert app.return_code is None


def test_the_log_view_imports_no_data_frames(log):
    program = (
        "import asyncio, sys\n"
        "from nsystui.questions.opening import Source\n"
        "from nsystui.ui.app import LogApp\n"
        "async def run():\n"
        f"    app = LogApp(Source((), logs=({str(log)!r},)))\n"
        "    async with app.run_test() as pilot:\n"
        "        while not app.nccl_log.is_over: await pilot.pause()\n"
        "        await pilot.press(*'oooooooo', 'enter', 's', 'y')\n"
        "asyncio.run(run())\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY.isdisjoint(done.stdout.split())


def test_a_slow_line_gets_little(tmp_path):
    """The budget of the other screens, in a real terminal, with a table longer than the screen."""
    path = tmp_path / "sizes.log"
    calls = (CALL.format(rank=0, pid=1, op="AllReduce", n=n, count=n + 1) for n in range(300))
    path.write_text(INIT.format(rank=0, pid=1) + "".join(calls))
    with Terminal([sys.executable, "-m", "nsystui", str(path)], {}, columns=120, lines=36) as terminal:
        terminal.wait_for("300 calls", timeout=30)
        terminal.press("b", "b")
        terminal.settle(quiet=0.8)

        def cost(key: str) -> int:
            terminal.mark()
            terminal.press(key)
            terminal.answer(0.3, timeout=2.0)
            return terminal.bytes_since_mark

        cost("down")
        assert cost("down") <= 600
        assert cost("pagedown") <= 8 * 1024
        assert cost("o") <= 15 * 1024
