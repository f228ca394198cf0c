"""The keys that a user presses, on a demo job: drilling down, jumping, selecting, exporting."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import threading
from pathlib import Path

import pytest
from support import real_exports
from synthetic import node_graph_export, training_job
from textual.events import Key

from nsystui.cli import main
from nsystui.questions.kernels import Names
from nsystui.questions.opening import Source
from nsystui.ui.app import NsystuiApp
from nsystui.ui.palette import Palette
from nsystui.ui.screens import screen_of
from nsystui.ui.screens.events import EventsScreen
from nsystui.ui.screens.instances import KernelInstancesScreen
from nsystui.ui.screens.nccl import NcclScreen
from nsystui.ui.screens.nccl_log import NcclLogScreen
from nsystui.ui.widgets.lines import KeyLine, SelectionLine, SidePanel
from nsystui.ui.widgets.window_table import WindowTable

# All of them in the long campaign: what one has besides, the tests of the tables behind the screens go through.
FEW = ("cuda-graphs", "h100-2rank-moe-before", "no-kernel-table", "schema2021-no-metadata")
REAL = [path for path in real_exports() if path.stem in FEW or "NSYSTUI_CAMPAIGN" in os.environ]


@pytest.fixture
def job(two_ranks, cache):
    return cache.parent, [str(path) for path in two_ranks]


@contextlib.asynccontextmanager
async def running(directory: Path, files, size=(120, 36)):
    app = NsystuiApp(Source(tuple(map(str, files)), directory / "cache"))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


def line(app: NsystuiApp, kind: type) -> str:
    """The text of one of the lines around the screen."""
    widget = app.screen.query_one(kind)
    return "".join(segment.text for segment in widget.render_line(0)).rstrip()


async def answer(app, pilot, text: str) -> None:
    """Types into the open prompt."""
    app.screen.prompt.value = text
    await pilot.press("enter")
    await pilot.pause()


async def test_enter_leads_from_a_kernel_to_its_launches_to_the_event_and_c_to_the_call(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "enter")
        assert isinstance(app.screen, KernelInstancesScreen)
        kernel = app.screen.kernel
        launch = app.screen.values()
        await pilot.press("enter")
        assert isinstance(app.screen, EventsScreen)
        event = app.screen.values()
        assert (event["start"], event["duration"], event["row"]) == (
            launch["start"],
            launch["duration"],
            launch["row"],
        )
        await pilot.press("c")
        call = app.screen.values()
        assert call["kind"] == "api"
        assert call["correlation_id"] == launch["correlation_id"]
        await pilot.press("c")
        assert app.screen.values()["row"] == launch["row"]
        await pilot.press("escape", "escape")
        assert app.screen.values()["name"] == kernel


async def test_a_graph_launch_offers_the_list_of_what_it_launched(tmp_path):
    path = node_graph_export(tmp_path / "graph.sqlite")
    async with running(tmp_path, [path]) as (app, pilot):
        await pilot.press("6", "slash")
        await answer(app, pilot, "cudaGraphLaunch")
        if "cudaGraphLaunch" not in str(app.screen.values()["name"]):
            await pilot.press("n")
        await pilot.press("c")
        assert app.screen.query_one(WindowTable).row_count == 10
        await pilot.press("down", "enter")
        assert app.screen.values()["kind"] == "kernel"


async def test_filter_is_one_for_all_screens_and_esc_takes_it_back(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "slash")
        await answer(app, pilot, "nccl")
        assert 'filter "nccl"' in line(app, SelectionLine)
        assert all("nccl" in str(row[-1]).lower() for row in app.screen.table.answer.page(0, 100))
        assert " of " in line(app, SelectionLine)
        await pilot.press("6")
        assert 'filter "nccl"' in line(app, SelectionLine)
        assert "nccl" in str(app.screen.values()["name"]).lower()
        await pilot.press("escape", "escape")
        assert line(app, SelectionLine).startswith("all ranks · all time")


async def test_a_bad_filter_is_told_in_the_prompt_and_changes_nothing(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "slash")
        await answer(app, pilot, "/(/")
        assert app.screen.prompt.is_open
        await pilot.press("escape")
        assert app.selection.is_everything


async def test_t_takes_the_window_of_a_row_for_every_screen(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "enter", "t")
        window = app.selection.window
        assert window is not None
        await pilot.press("6")
        starts = [(row[0], row[3]) for row in app.screen.table.answer.page(0, 500)]
        assert starts and all(start < window.end and start + length >= window.start for start, length in starts)


async def test_ranks_are_selected_by_number(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "r")
        await answer(app, pilot, "1")
        assert "rank 1" in line(app, SelectionLine)
        await pilot.press("b")
        assert {row[8] for row in app.screen.table.answer.page(0, 100)} == {1}
        await pilot.press("r")
        await answer(app, pilot, "7")
        assert app.screen.prompt.is_open


@pytest.mark.parametrize("keys", [("s", "s"), ("s", "c"), ("s", "c", "s", "c")])
async def test_rows_are_sorted_by_the_column_of_a_letter_or_the_next_one(job, keys):
    async with running(*job) as (app, pilot):
        await pilot.press("2", *keys)
        key, descending = app.screen.table.sorted_by
        values = [
            dict(zip([c.key for c in app.screen.table.answer.columns], row, strict=True))[key]
            for row in app.screen.table.answer.page(0, 100)
        ]
        assert values == sorted(values, reverse=descending)


async def test_a_picked_order_is_marked_in_the_heading_and_taken_with_one_letter(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "s")
        table = app.screen.table
        marked = {segment.text for segment in table.render_line(0) if segment.style and segment.style.reverse}
        assert len(marked) == len("".join(marked)) > 4
        await pilot.press("c")
        assert table.sorted_by == ("count", True)
        await pilot.press("s", "c")
        assert table.sorted_by == ("count", False)
        await pilot.press("s", "escape", "s", "tab", "s", "down")
        assert table.sorted_by == ("count", False) and table.cursor_row == 0
        assert not any(segment.style and segment.style.reverse for segment in table.render_line(0))


async def test_events_are_searched_in_both_directions(job):
    async with running(*job) as (app, pilot):
        await pilot.press("6", "slash")
        await answer(app, pilot, "cudaMalloc")
        first = app.screen.table.cursor_row
        assert app.screen.values()["name"] == "cudaMalloc"
        await pilot.press("n", "N")
        assert app.screen.table.cursor_row == first
        kind = app.screen.values()["kind"]
        await pilot.press("right_square_bracket")
        assert app.screen.values()["kind"] == kind
        assert app.screen.table.cursor_row > first
        await pilot.press("colon")
        await answer(app, pilot, "400ms")
        assert app.screen.values()["start"] >= 400_000_000


async def test_nccl_drills_to_calls_and_c_goes_to_the_kernel(job):
    async with running(*job) as (app, pilot):
        await pilot.press("3")
        sizes = {row["bucket"] for row in app.screen.table.answer.records()}
        assert sizes == {"<64KiB", "64KiB–1MiB", "1MiB–16MiB", ">16MiB"}
        await pilot.press("v")
        rows = app.screen.table.answer.records()
        app.screen.table.move_to(next(i for i, row in enumerate(rows) if row["collective"] == "AllReduce"))
        await pilot.press("enter")
        partner = app.screen.values()["partner_row"]
        await pilot.press("c")
        assert isinstance(app.screen, EventsScreen)
        assert (app.screen.values()["kind"], app.screen.values()["row"]) == ("nccl", partner)


async def test_without_any_range_that_passes_the_filter_the_tree_says_so_and_shows_no_details(job):
    async with running(*job) as (app, pilot):
        await pilot.press("5", "down")
        assert app.screen.pane.render_line(0).text.strip()
        await pilot.press("slash")
        await answer(app, pilot, "qqqq")
        assert not app.screen.pane.render_line(0).text.strip()
        await pilot.press("n")
        assert line(app, KeyLine) == 'no range matches "qqqq"'


async def test_nvtx_opens_folded_steps_down_to_single_ranges_and_their_gpu_work(job):
    async with running(*job) as (app, pilot):
        await pilot.press("5", "slash")
        await answer(app, pilot, "forward")
        await pilot.press("n")
        assert app.screen.node().name == "forward"
        while app.screen.node().index is None:
            await pilot.press("right", "end" if app.screen.node().child_count > 400 else "down")
        await pilot.press("c")
        assert app.screen.values()["kind"] == "kernel"


async def test_what_lacks_a_partner_says_why(job):
    async with running(*job) as (app, pilot):
        await pilot.press("6", "slash")
        await answer(app, pilot, "step 0")
        await pilot.press("c")
        assert "no correlation id" in line(app, KeyLine)


async def test_e_writes_what_the_command_prints_byte_for_byte(job, tmp_path, capsys, monkeypatch):
    directory, files = job
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(directory / "cache"))
    commands = {
        "1": ("overview",),
        "2": ("kernels",),
        "5": ("nvtx",),
        "6": ("events",),
        "2nn": ("kernels", "--names", "short"),
    }
    every = [(keys, ending) for keys in commands for ending in (("csv", "json", "md") if keys == "2" else ("csv",))]
    async with running(directory, files) as (app, pilot):
        for keys, ending in every:
            await pilot.press(*keys, "e")
            if keys == "5":
                await answer(app, pilot, "tree")
            await answer(app, pilot, str(tmp_path / f"{keys}.{ending}"))
    for keys, ending in every:
        assert main([*commands[keys], *files, "--format", ending]) == 0
        assert (tmp_path / f"{keys}.{ending}").read_text(encoding="utf-8") == capsys.readouterr().out, keys


async def test_e_writes_the_opened_rows_of_the_nvtx_tree(job, tmp_path):
    async with running(*job) as (app, pilot):
        await pilot.press("5", "down", "right", "down", "right", "e")
        assert "rows" in app.screen.prompt.value
        await pilot.press("enter")
        await answer(app, pilot, str(tmp_path / "rows.csv"))
        outline = app.screen.outline
        shown = outline.page(0, len(outline))
        lines = [one for one in outline.lines if not one.rest]
    with (tmp_path / "rows.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines)
    names = [row[0] for row in shown if not str(row[0]).startswith("…")]
    assert [row["Path"].rpartition(" › ")[2] for row in rows] == names
    assert [int(row["Total Time (ns)"]) for row in rows] == [one.node.total for one in lines]
    deepest = max(rows, key=lambda row: int(row["Level"] or -1))
    assert deepest["Path"].count(" › ") == int(deepest["Level"]) > 0
    assert {row["Rank"] for row in rows} <= {"", "0", "1"}


@pytest.mark.parametrize(("keys", "what"), [("3", "kernel"), ("3v", "call")])
async def test_e_writes_the_view_of_nccl_as_the_command_prints_it(job, tmp_path, capsys, monkeypatch, keys, what):
    directory, files = job
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(directory / "cache"))
    async with running(directory, files) as (app, pilot):
        await pilot.press(*keys, "e")
        await answer(app, pilot, str(tmp_path / "nccl.csv"))
    assert main(["nccl", *files, "--format", "csv"]) == 0
    printed = [row for row in csv.DictReader(io.StringIO(capsys.readouterr().out)) if row.pop("What") == what]
    with open(tmp_path / "nccl.csv", encoding="utf-8", newline="") as written:
        rows = list(csv.DictReader(written))
    assert rows == [{name: row[name] for name in rows[0]} for row in printed]


@pytest.mark.parametrize(("key", "command"), [("b", ("kernels", "--by", "rank")), ("v", ("memory",))])
async def test_e_writes_what_is_grouped_or_of_another_table(job, tmp_path, capsys, monkeypatch, key, command):
    directory, files = job
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(directory / "cache"))
    async with running(directory, files) as (app, pilot):
        await pilot.press("2", key, "e")
        await answer(app, pilot, str(tmp_path / "table.csv"))
    assert main([*command, *files, "--format", "csv"]) == 0
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == capsys.readouterr().out


async def test_an_existing_file_is_not_overwritten_without_asking(job, tmp_path):
    target = tmp_path / "mine.csv"
    target.write_text("precious")
    async with running(*job) as (app, pilot):
        await pilot.press("2", "e")
        await answer(app, pilot, str(target))
        assert app.screen.prompt.is_open
        await answer(app, pilot, "n")
        assert target.read_text() == "precious"
        await pilot.press("e")
        await answer(app, pilot, str(target))
        await answer(app, pilot, "y")
        assert target.read_text().startswith("Time (%)")


async def test_a_failing_write_says_why(job, tmp_path):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "e")
        await answer(app, pilot, str(tmp_path / "nowhere" / "table.csv"))
        assert "not written" in line(app, KeyLine)


async def test_y_copies_the_row_as_text(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "y")
        assert str(app.screen.values()["name"]) in app.clipboard


async def test_a_broken_file_leaves_the_others_open(job, tmp_path):
    directory, files = job
    broken = tmp_path / "rank9.sqlite"
    broken.write_bytes(b"")
    async with running(directory, [*files, broken]) as (app, pilot):
        await pilot.press("2")
        assert len(app.screen.table.answer)
        assert "empty" in app.files[broken].failure


async def test_without_any_export_the_program_ends_with_the_reasons(tmp_path):
    broken = tmp_path / "rank9.sqlite"
    broken.write_bytes(b"not a database")
    app = NsystuiApp(Source((str(broken),), tmp_path / "cache"))
    async with app.run_test() as pilot:
        await pilot.pause()
    assert app.return_code == 2


@pytest.mark.campaign
@pytest.mark.skipif(not REAL, reason="the real exports are not on this machine")
@pytest.mark.parametrize(("number", "path"), enumerate(REAL), ids=str)
async def test_every_screen_opens_on_real_exports_and_answers_keys(number, path, cache_directory):
    size = ((120, 36), (80, 24))[number % 2]
    async with running(cache_directory.parent, [path], size) as (app, pilot):
        for mode in "123456":
            await pilot.press(mode)
            await pilot.press("down", "end", "s", "s")
            await pilot.press("enter")
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
            await pilot.pause()
        assert app.is_running


async def test_a_report_is_converted_when_asked_and_counts_as_one_file(tmp_path, monkeypatch):
    (tmp_path / "made").mkdir()
    (exported,) = training_job(tmp_path / "made", ranks=1, steps=2)
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\ncp "{exported}" "$2"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"report")
    app = NsystuiApp(
        Source((str(report),), tmp_path / "cache", convert=True, conversion_directory=tmp_path / "cache" / "exports")
    )
    async with app.run_test() as pilot:
        await pilot.pause()
        assert list(app.files) == [report]
        assert app.files[report].ready


async def test_what_ends_while_a_screen_is_made_does_not_end_the_program(job):
    async with running(*job) as (app, pilot):
        for name in ("kernels", "nccl", "gpu", "nvtx", "events", "ranks", "timeline", "log"):
            screen = NcclLogScreen() if name == "log" else screen_of(name)
            made = app.push_screen(screen)
            assert not screen.is_mounted, name
            app.update_screen()
            app.update_status()
            app.say("the log is read")
            await made
            await pilot.pause()
            assert app.screen is screen and app.return_code is None, name


@pytest.mark.parametrize(
    ("keys", "above"),
    [
        (("ctrl+p", "4"), [Palette]),
        (("ctrl+p", "enter", "escape", "4"), []),
        (("enter", "enter"), [KernelInstancesScreen]),
    ],
)
async def test_keys_faster_than_screens_open_end_in_one_place(job, keys, above):
    async with running(*job) as (app, pilot):
        await pilot.press("2")
        for key in keys:
            app.post_message(Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        await pilot.pause()
        assert [type(screen) for screen in app.screen_stack[1:]] == above
        assert app.return_code is None


@pytest.mark.parametrize(("keys", "words"), [(("2", "enter"), "median")])
async def test_beside_a_wide_table_stands_its_panel(job, keys, words):
    async with running(*job) as (app, pilot):
        await pilot.press(*keys)
        panel = app.screen.query_one(SidePanel)
        assert panel.region.x > 0 and panel.region.right <= 120
        assert any(words in line for line in panel.lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)])
async def test_every_table_has_the_details_of_its_row(job, size):
    async with running(*job, size) as (app, pilot):
        for keys in (("2",), ("enter",), ("3",), ("5", "down"), ("6",), ("7",)):
            await pilot.press(*keys)
            pane, table = app.screen.pane, app.screen.table
            name = getattr(app.screen, "kernel", table.current_values[table.name_key])
            assert (name[:20] if name else "rank 0") in pane.lines[0], keys
            assert pane.region.right <= size[0] and pane.region.bottom < size[1]
            assert pane.region.x >= table.region.right if size[0] >= 150 else pane.region.y >= table.region.bottom


async def test_the_details_of_a_launch_say_what_launched_it_and_in_which_ranges(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "enter")
        lines = app.screen.pane.lines
        assert "launched by cu" in lines[1] and "NVTX " in lines[2] and "stream" in lines[3] and "⏎ event" in lines[4]
        await pilot.press("enter")
        assert "NVTX " in app.screen.pane.lines[2]
        assert not any("is driver" in line for line in app.screen.pane.lines)


async def test_keys_before_a_screen_is_made_do_nothing(job):
    async with running(*job) as (app, pilot):
        made = app.push_screen(KernelInstancesScreen("a kernel", Names.FULL))
        for action in ("take_window", "copy_row", "sort", "export"):
            await app.run_action(action, app.screen)
        await made
        await pilot.pause()
        assert app.return_code is None


@pytest.mark.parametrize("fails", [False, True])
async def test_enter_on_outdated_rows_opens_nothing(job, monkeypatch, fails):
    async with running(*job) as (app, pilot):
        await pilot.press("3")
        computed = threading.Event()
        ask = NcclScreen.ask

        def asked_slowly(screen, *question):
            assert computed.wait(60)
            if fails:
                raise ValueError("it fails")
            return ask(screen, *question)

        monkeypatch.setattr(NcclScreen, "ask", asked_slowly)
        await pilot.press("b", "enter")
        await pilot.pause()
        assert app.screen_stack == [app.screen]
        assert "outdated" in line(app, KeyLine)
        computed.set()
        await pilot.pause()
        await pilot.press("enter")
        assert len(app.screen_stack) == (1 if fails else 2)
        assert app.return_code is None


async def test_a_dialog_that_is_closed_twice_takes_no_other_screen_with_it(job):
    async with running(*job) as (app, pilot):
        await pilot.press("2", "enter", "question_mark")
        dialog, drilled = app.screen_stack[-1], app.screen_stack[-2]
        dialog.dismiss()
        dialog.dismiss()
        await pilot.pause()
        assert app.screen is drilled
        drilled.leave()
        drilled.leave()
        await pilot.pause()
        assert len(app.screen_stack) == 1
