"""NCCL's debug log on the screen: its tables and their keys, alone and with exports, while it is being read."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import jobs
import pytest
from harness import PROGRAM, Terminal
from jobs import NARROW, WIDE, answer, becomes_text, line_with, name_of_screen, press, screen_text, shown, tap
from synthetic.nccl_log import call, init

from nsystui.cli import main
from nsystui.exports.nccl_log.files import OpenLog
from nsystui.questions.job.opening import JobSource
from nsystui.questions.nccl_log.summary import steps_of
from nsystui.ui import loading
from nsystui.ui.app import NsystuiApp
from nsystui.ui.loading import LogLoading, LogState

HEAVY = {"pandas", "numpy", "sqlalchemy", "duckdb", "pyarrow"}

TUNING = "n0:1:7 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}\n"


def log_text(calls: int = 3) -> str:
    """Return the log of two ranks on two hosts: AllReduces of 4 KiB, and a Reduce of 4 MiB only on rank 0."""
    lines = [init(rank + 1, f"0xc{rank}", rank, host=f"n{rank}") for rank in (0, 1)]
    lines += [all_reduce(n, rank) for n in range(calls) for rank in (0, 1)]
    return "\n".join([*lines, call("Reduce", 2**20, host="n0", comm="0xc0", op_count=calls), TUNING])


def all_reduce(number: int, rank: int = 0, count: int = 1024) -> str:
    return call(count=count, host=f"n{rank}", pid=rank + 1, comm=f"0xc{rank}", op_count=number)


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "nccl.0.log"
    path.write_text(log_text())
    return path


@contextlib.asynccontextmanager
async def open_logs(*logs: Path, size=NARROW, steps: str | None = None):
    log_steps = None if steps is None else steps_of(steps)
    async with shown(NsystuiApp(JobSource((), logs=tuple(map(str, logs)), log_steps=log_steps)), size) as (app, pilot):
        yield app, pilot


def has(app, words: str) -> bool:
    return any(words in line for line in screen_text(app))


class TestTables:
    async def test_steps_choose_what_is_counted_or_are_told_with_those_that_are_there(self, tmp_path):
        path, text = tmp_path / "train.log", [init(comm="0xc0", host="n0")]
        for number in (4, 5, 6):
            text += [f"Training epoch 0, iteration {number}/9 | x"]
            text += [all_reduce(number)] * number
        path.write_text("\n".join([*text, ""]))
        async with open_logs(path, steps="5:") as (app, _pilot):
            line_with(app, "steps 5:")
            assert app.nccl_log.calls == 11
            (said,) = [note for note in app.nccl_log.tables["ops"].notes if note.startswith("--steps")]
            assert said.startswith("--steps chose 2 training lines, 4 calls left out")
        path.write_text("Training epoch 0, iteration 4/9 | x\n" + log_text())
        async with open_logs(path, steps="7:8") as (app, _pilot):
            line_with(app, "none of the iterations is in these logs: they have 4 to 4")

    async def test_ranks_of_communicators_that_no_line_names(self, tmp_path):
        path = tmp_path / "calls.log"
        path.write_text("".join(line for line in log_text().splitlines(True) if "COMPLETE" not in line))
        async with open_logs(path) as (app, pilot):
            line_with(await press(pilot, "tab", "tab", "tab", "enter"), "the log has no more about this row")
            assert app.screen.name_of_table == "communicators"

    async def test_records_of_nccl_inspector_alone_begin_with_their_table(self, tmp_path):
        header = '{"header": {"id": "0xfe", "n_ranks": 2}, "metadata": {"hostname": "n1", "pid": 1, '
        header += '"inspector_output_format_version": "v4.1"}, "coll_perf": {"coll": "AllReduce", "coll_algo": "NVLS", '
        (tmp_path / "n1-pid1.log").write_text(header + '"coll_sn": 0, "coll_msg_size_bytes": 4096}}\n')
        async with open_logs(tmp_path / "n1-pid1.log") as (app, pilot):
            line_with(app, "NVLS")
            assert not has(app, "no ops") and app.screen.name_of_table == "inspector"
            assert (await press(pilot, "tab")).screen.name_of_table == "lines"
            line_with(app, "calls of NCCL Inspector")

    async def test_keys_while_the_log_is_read_anew_wait_for_it(self, log):
        async with open_logs(log) as (app, pilot):
            await answer(app, pilot, "Reduce", "slash")
            read, app.nccl_log = app.nccl_log, LogState(app.source.logs)
            line_with(await press(pilot, "escape"), "reading")
            line_with(await press(pilot, "b"), "cannot be grouped otherwise")
            app.nccl_log = read
            app.screen.log_changed()
            line_with(await jobs.rested(pilot), "[ops]")


class TestKeys:
    async def test_e_writes_what_the_command_prints_byte_for_byte(self, log, tmp_path, capsys):
        async with open_logs(log) as (app, pilot):
            assert (await press(pilot, "y")).clipboard.startswith("Reduce\t1\t")
            for name in ("ops", "sizes", "calls"):
                assert (await press(pilot, "e")).screen.prompt.input.value == f"nccl.0-nccl-log-{name}.csv"
                line_with(await answer(app, pilot, str(tmp_path / f"{name}.csv")), "wrote ")
                await pilot.press("tab")
        for name in ("ops", "sizes", "calls"):
            assert main(["nccl-log", str(log), "--tables", name, "--format", "csv"]) == 0
            assert (tmp_path / f"{name}.csv").read_text() == capsys.readouterr().out

    async def test_several_logs_are_named_by_their_table(self, log, tmp_path):
        other = tmp_path / "nccl.1.log"
        other.write_text(log_text())
        async with open_logs(log, other, tmp_path / "gone.log") as (app, pilot):
            assert screen_text(app)[1].startswith("3 logs · ")
            line_with(app, "not read: ")
            assert "gone.log: no such file" in " ".join(screen_text(app)) and app.nccl_log.calls == 14
            assert (await press(pilot, "e")).screen.prompt.input.value == "nccl-log-ops.csv"


class TestReading:
    @pytest.fixture
    def gate(self, monkeypatch) -> threading.Event:
        """Return an event; reading of logs stops after the first piece of each until it is set."""
        gate, read = threading.Event(), OpenLog.read
        monkeypatch.setattr(OpenLog, "read", lambda log, size: (log.position and gate.wait(20), read(log, size))[1])
        monkeypatch.setattr(loading, "FIRST_TABLES", 0.0)
        monkeypatch.setattr(loading, "LINES_AT_ONCE", 10)
        return gate

    @pytest.fixture
    def app(self, tmp_path) -> NsystuiApp:
        """Return the program on a long log."""
        path = tmp_path / "long.log"
        path.write_text(log_text(calls=3000))
        return NsystuiApp(JobSource((), logs=(str(path),)))

    async def test_tables_grow_stop_and_are_read_again(self, app, gate):
        async with jobs.kept_at_work(app, WIDE) as rest:
            assert await becomes_text(app, "reading log") and await becomes_text(app, "AllReduce")
            assert 0 < app.nccl_log.calls < 6001
            tap(app, "tab", "escape")
            assert await becomes_text(app, "stopping…")
            gate.set()
            await rest()
            line_with(app, "R resumes reading")
            assert app.nccl_log.is_stopped and app.nccl_log.calls < 6001 and app.screen.name_of_table == "sizes"
            tap(app, "R")
            await rest()
            line_with(app, "6,001 calls")
            assert not has(app, "R resumes reading") and not has(app, "reading log")

    async def test_it_ends_at_once_when_the_program_is_left(self, app, gate):
        async with jobs.kept_at_work(app, WIDE):
            assert await becomes_text(app, "reading log")
            tap(app, "q")
            assert await jobs.becomes(lambda: app.return_code is not None)
            gate.set()
        assert app.return_code == 0
        assert not app.nccl_log.is_over or app.nccl_log.is_stopped

    async def test_without_any_log_it_ends_with_the_reasons_and_without_calls_says_what_to_record(self, tmp_path):
        async with open_logs(tmp_path / "gone.log") as (app, _pilot):
            pass
        assert app.return_code == 2 and "no such file" in app.reasons[0]
        path = tmp_path / "bare.log"
        path.write_text("n0:1:7 [0] NCCL INFO NET/IB : No device found.\n")
        async with open_logs(path) as (app, _pilot):
            line_with(app, "no calls of NCCL in 1 line: record with NCCL_DEBUG=INFO")

    def test_an_error_that_nobody_thought_of_ends_the_reading(self, log, monkeypatch):
        monkeypatch.setattr("nsystui.exports.nccl_log.lines.LogReader.read", Mock(side_effect=RuntimeError("a bug")))
        loading = LogLoading([str(log)], lambda _: None)
        loading.start()
        assert loading.state.is_over and loading.state.failed == "not read: a bug"


class TestBesideExports:
    @pytest.mark.campaign
    @pytest.mark.parametrize("kind", ["none", "gone", "read"])
    async def test_the_log_is_a_view_beside_the_exports(self, two_ranks, cache, log, tmp_path, kind):
        logs = {"none": (), "gone": (str(tmp_path / "gone.log"),), "read": (str(log),)}[kind]
        async with shown(NsystuiApp(JobSource(tuple(map(str, two_ranks)), cache, logs=logs)), WIDE) as (app, pilot):
            line_with(await press(pilot, "3"), "[kernels]")
            assert app.return_code is None
            assert kind != "none" or ("log" not in screen_text(app)[2] and not has(app, "NCCL log"))
            if kind == "gone":
                line_with(app, "NCCL log: not read: ")
            if kind == "read":
                line_with(app, "7 calls of 2 ranks, 4.023 MiB")
                line_with(await press(pilot, "V"), "[log]")
                line_with(await press(pilot, "2"), "2 Kernels")
                assert name_of_screen(await press(pilot, "3", "3")) == "NcclScreen" and has(app, "kernel")


@pytest.mark.campaign
def test_the_log_view_imports_no_data_frames(log):
    program = f"""
import asyncio, sys
from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import NsystuiApp
async def run():
    app = NsystuiApp(JobSource((), logs=({str(log)!r},)))
    async with app.run_test() as pilot:
        while not app.nccl_log.is_over: await pilot.pause()
        await pilot.press(*"oooooooo", "enter", "s", "y")
asyncio.run(run())
print(*sys.modules)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY.isdisjoint(done.stdout.split())


@pytest.mark.campaign
def test_a_slow_line_gets_little(tmp_path):
    """The limits of other screens hold in a real terminal, with a table longer than the screen."""
    path = tmp_path / "sizes.log"
    calls = (all_reduce(n, count=n + 1) for n in range(300))
    path.write_text("\n".join([init(comm="0xc0", host="n0"), *calls, ""]))
    with Terminal([*PROGRAM, str(path)], {}, columns=120, lines=36, ready="300 calls") as terminal:
        terminal.press("tab", "tab")
        terminal.settle(quiet=0.8)
        terminal.cost("down", 0.3)
        for key, most in {"down": 600, "pagedown": 8 * 1024, "tab": 15 * 1024}.items():
            assert terminal.cost(key, 0.3) <= most, key
