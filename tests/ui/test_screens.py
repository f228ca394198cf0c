"""The keys that a user presses, on a demo job: drilling down, jumping, selecting, exporting."""

import csv
import io
import itertools
import threading

import campaign
import jobs
import pytest
from jobs import NARROW, WIDE, answer, cells, last_line, press, resize, rested, running, screen_text, tap
from support import real_exports
from synthetic import ExportWriter
from synthetic.writing.host import Frame
from textual.worker import Worker

from nsystui.cli import main
from nsystui.questions.job.opening import JobSource
from nsystui.questions.kernels.summary import Names
from nsystui.questions.nvtx.paths import NodeKind
from nsystui.store.session import Computation
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens import screen_of
from nsystui.ui.screens.gpu import GpuScreen
from nsystui.ui.screens.kernels import KernelInstancesScreen
from nsystui.ui.screens.nccl import NcclScreen
from nsystui.ui.screens.nccl_log import NcclLogScreen
from nsystui.ui.screens.nvtx import NvtxScreen
from nsystui.ui.screens.timeline import TimelineScreen
from nsystui.ui.widgets.panels import DetailPane

REAL = real_exports(of_every_kind=True)


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.campaign
async def test_rows_are_sorted_by_the_column_of_a_letter_or_the_next_one(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):

        def check_order() -> tuple[str, bool]:
            key, descending = app.screen.table.sorted_by
            assert cells(app, key) == sorted(cells(app, key), reverse=descending)
            return key, descending

        table = (await press(pilot, "2", "s")).screen.table
        marked = {segment.text for segment in table.render_line(0) if segment.style and segment.style.reverse}
        assert len(marked) == len("".join(marked)) > 4
        for keys, descending in (("c", True), ("sc", False)):
            await pilot.press(*keys)
            assert check_order() == ("count", descending)
        await pilot.press("s", "escape", "s", "tab", "s", "down")
        assert table.sorted_by == ("count", False) and table.cursor_row == 0
        assert not any(segment.style and segment.style.reverse for segment in table.render_line(0))
        await pilot.press("s", "s")
        assert check_order()[0] != "count"


@pytest.mark.campaign
async def test_the_ranges_of_the_path_under_the_cursor_are_bars_in_order_of_start(job, cache):
    async with running(job, cache, (200, 60), "5") as (app, pilot):
        chart = app.screen.chart
        assert chart.lanes[0].label == app.screen.node().name
        while app.screen.node().kind is not NodeKind.RANGES:
            await press(pilot, "down")
        (lane,), node = chart.lanes, app.screen.node()
        times = [one.gpu_total for one in app.screen.nvtx_tree.children(node, order="time")]
        ((category, bins),) = lane.stack
        shown = [share for share, before in itertools.pairwise([*bins, 0.0]) if share and share != before]
        assert (category, len(times)) == ("compute", node.count)
        assert shown == pytest.approx([time / max(times) for time in times])
        await press(pilot, "end")  # ranges without launches
        assert app.screen.node().gpu_total is None and [name for name, _ in chart.lanes[0].stack] == ["nvtx"]
        assert not (await resize(pilot, *WIDE)).screen.chart.display


@pytest.mark.campaign
async def test_a_bar_of_many_ranges_is_the_mean_of_neighbours(tmp_path):
    with ExportWriter(tmp_path / "many.sqlite") as export:
        thread = export.thread(export.process(70), 70, "python")
        for number in range(1_000):
            export.nvtx_range(thread, 10 * number, 10 * number + (2 if number % 2 else 4), "work")
    async with running([tmp_path / "many.sqlite"], None, WIDE, "5", "left") as (app, _):
        (lane,) = app.screen.chart.lanes
        ((_, bins),) = lane.stack
        together = -(-1_000 // app.screen.chart.chart_width)
        assert lane.notes[-1][1] == f"a bar: mean of {together}" and min(bins) >= 0.75


@pytest.mark.campaign
async def test_e_writes_what_the_command_prints_byte_for_byte(job, cache, tmp_path, capsys):
    cases = (
        ("1", "csv", ("overview",)), *(("2", ending, ("kernels",)) for ending in ("csv", "json", "md")),
        ("6", "csv", ("events",)), ("2br", "csv", ("kernels", "--by", "rank")),
        ("2Bah", "csv", ("kernels", "--names", "short")), ("2vm", "csv", ("memory",)),
    )  # fmt: skip
    async with running(job, cache, WIDE) as (app, pilot):
        for keys, ending, _ in cases:
            await pilot.press(*keys, "e")
            await answer(app, pilot, str(tmp_path / f"{keys}.{ending}"))
        await pilot.press("3")
        for what in ("kernel", "call"):
            await answer(app, pilot, str(tmp_path / f"{what}.csv"), "e")
            await pilot.press("v", "c")
    for keys, ending, command in cases:
        assert main([*command, *map(str, job), "--format", ending]) == 0
        assert (tmp_path / f"{keys}.{ending}").read_text(encoding="utf-8") == capsys.readouterr().out, keys
    assert main(["nccl", *map(str, job), "--format", "csv"]) == 0
    printed = records(capsys.readouterr().out)
    for what in ("kernel", "call"):
        rows = records((tmp_path / f"{what}.csv").read_text(encoding="utf-8"))
        assert rows == [{name: row[name] for name in rows[0]} for row in printed if row["What"] == what], what


@pytest.mark.campaign
async def test_e_writes_the_opened_rows_of_the_nvtx_tree(job, cache, tmp_path):
    async with running(job, cache, WIDE, "5", "down", "right", "down", "right", "e") as (app, pilot):
        await answer(app, pilot, str(tmp_path / "rows.csv"))
        outline = app.screen.outline
        shown, lines = outline.page(0, len(outline)), [one for one in outline.lines if not one.rest]
    rows = records((tmp_path / "rows.csv").read_text(encoding="utf-8"))
    names = [row[0] for row in shown if not str(row[0]).startswith("…")]
    assert [row["Path"].rpartition(" › ")[2] for row in rows] == names
    assert [int(row["Total Time (ns)"]) for row in rows] == [one.node.total for one in lines]
    deepest = max(rows, key=lambda row: int(row["Level"] or -1))
    assert deepest["Path"].count(" › ") == int(deepest["Level"]) > 0
    assert {row["Rank"] for row in rows} <= {"", "0", "1"}


@pytest.mark.campaign
async def test_an_existing_file_is_not_overwritten_without_asking_and_a_failing_write_says_why(job, cache, tmp_path):
    target = tmp_path / "mine.csv"
    target.write_text("precious")
    async with running(job, cache, WIDE, "2", "e") as (app, pilot):
        assert (await answer(app, pilot, str(target))).screen.prompt.is_open
        await answer(app, pilot, "n")
        assert target.read_text() == "precious"
        await answer(app, pilot, str(target), "e")
        await answer(app, pilot, "y")
        assert target.read_text().startswith("Time (%)")
        assert "not written" in last_line(await answer(app, pilot, str(tmp_path / "nowhere" / "table.csv"), "e"))


@pytest.mark.campaign
@pytest.mark.skipif(not REAL, reason="the real exports are not on this machine")
@pytest.mark.parametrize(
    ("number", "path"), campaign.some(len(REAL), enumerate(REAL)), ids=lambda value: getattr(value, "stem", "")
)
async def test_every_screen_opens_on_real_exports_and_answers_keys(number, path, cache_directory):
    async with running([path], cache_directory, ((120, 36), (80, 24))[number % 2]) as (app, pilot):
        for mode in "123456":
            await pilot.press(mode, "down", "end", "s", "s", "enter")
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
        assert app.is_running


@pytest.mark.campaign
async def test_screens_keys_and_dialogs_that_overtake_each_other_end_in_one_place(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        for name in ("kernels", "nccl", "gpu", "nvtx", "events", "ranks", "timeline", "log"):
            screen = NcclLogScreen() if name == "log" else screen_of(name)
            made = app.push_screen(screen)
            assert not screen.is_mounted, name
            app.update_screen()  # a computation that ends before a screen exists must not end the program
            app.update_status()
            app.say("the log is read")
            await made
            assert (await rested(pilot)).screen is screen and app.return_code is None, name
            app.pop_screen()

        made = app.push_screen(KernelInstancesScreen("a kernel", Names.FULL))
        for action in ("take_window", "copy_row", "sort", "export"):  # keys before a screen exists do nothing
            await app.run_action(action, app.screen)
        await made
        assert (await rested(pilot)).return_code is None
        app.pop_screen()

        dialog, drilled = (await press(pilot, "2", "enter", "question_mark")).screen_stack[-1], app.screen_stack[-2]
        dialog.dismiss()
        dialog.dismiss()
        assert len((await rested(pilot)).screen_stack) == 2 and app.screen is drilled


@pytest.mark.campaign
@pytest.mark.parametrize(("keys", "mode", "above"), campaign.first(1, [
    ("ctrl+p 4", "kernels", ["Palette"]),
    ("ctrl+p enter escape 4", "gpu", []),
    ("enter enter", "events", []),
    ("enter enter escape", "kernels", ["KernelInstancesScreen"]),
]))  # fmt: skip
async def test_keys_faster_than_screens_open_act_in_their_order(job, cache, keys, mode, above):
    async with running(job, cache, WIDE, "2") as (app, pilot):
        tap(app, *keys.split())
        await pilot.pause()
        assert [type(screen).__name__ for screen in app.screen_stack[1:]] == above and app.return_code is None
        assert app.current_mode == mode


@pytest.mark.campaign
async def test_a_jump_that_another_key_overtakes_goes_where_that_key_says(job, cache, monkeypatch):
    async with running(job, cache, WIDE, "2") as (app, pilot):
        switch = app.switch_mode

        async def overtaken(mode: str) -> None:
            await switch(mode)
            await switch("gpu")

        monkeypatch.setattr(app, "switch_mode", overtaken)
        for key in ("L", "w"):
            assert (await press(pilot, key)).current_mode == "gpu" and app.return_code is None


@pytest.mark.campaign
@pytest.mark.parametrize("fails", [False, True])
async def test_enter_on_outdated_rows_opens_the_row_that_takes_their_place(job, cache, monkeypatch, fails):
    app, computed, ask = NsystuiApp(JobSource(tuple(map(str, job)), cache)), threading.Event(), NcclScreen.ask

    def asked_slowly(screen, *question):
        assert computed.wait(60)
        if fails:
            raise ValueError("it fails")
        return ask(screen, *question)

    async with jobs.kept_at_work(app, WIDE) as rest:
        await rest()
        tap(app, "3")
        await rest()
        monkeypatch.setattr(NcclScreen, "ask", asked_slowly)
        tap(app, "b", "c", "enter")
        assert await jobs.becomes(lambda: "one moment" in last_line(app)) and app.screen_stack == [app.screen]
        computed.set()
        await rest()
        if fails:
            tap(app, "enter")
            assert await jobs.becomes(lambda: "outdated" in last_line(app))
        assert len(app.screen_stack) == (1 if fails else 2) and app.return_code is None


@pytest.mark.campaign
@pytest.mark.parametrize(("tab", "screen", "acts"), [
    ("4", GpuScreen, lambda app: app.selection.window is not None),
    ("5", NvtxScreen, lambda app: app.screen.node().id not in app.screen.outline.opened),
    ("L", TimelineScreen, lambda app: "nothing ran here" in last_line(app)),
])  # fmt: skip
async def test_enter_on_a_screen_that_is_being_computed_acts_when_it_is_there(
    job, cache, monkeypatch, tab, screen, acts
):
    app, computed, ask = NsystuiApp(JobSource(tuple(map(str, job)), cache)), threading.Event(), screen.ask

    def asked_slowly(shown, *question):
        assert computed.wait(60)
        return ask(shown, *question)

    async with jobs.kept_at_work(app, WIDE) as rest:
        await rest()
        monkeypatch.setattr(screen, "ask", asked_slowly)
        tap(app, tab)
        assert await jobs.becomes(lambda: isinstance(app.screen, screen) and app.screen.question.is_awaited)
        tap(app, "enter")
        assert await jobs.becomes_text(app, "one moment")
        computed.set()
        await rest()
        assert acts(app) and app.return_code is None, "\n".join(screen_text(app))


@pytest.mark.campaign
async def test_a_screen_says_what_it_computes_also_while_it_shows_other_rows(job, cache, monkeypatch):
    app, computed, ask = NsystuiApp(JobSource(tuple(map(str, job)), cache)), threading.Event(), NcclScreen.ask

    def asked_slowly(screen, *question):
        assert computed.wait(60)
        return ask(screen, *question)

    async with jobs.kept_at_work(app, WIDE) as rest:
        await rest()
        monkeypatch.setattr(NcclScreen, "ask", asked_slowly)
        tap(app, "3")
        assert await jobs.becomes_text(app, "computing NCCL › kernels…")
        app.computing(Computation("steps", 3, 64))
        assert await jobs.becomes_text(app, "computing steps: 3 of")
        app.computing(None)
        computed.set()
        await rest()
        assert "● loaded" in screen_text(app)[0]
        computed.clear()
        tap(app, "v", "c")
        assert await jobs.becomes(lambda: "computing NCCL › CPU calls…" in screen_text(app)[0])
        computed.set()
        await rest()
        assert "● loaded" in screen_text(app)[0]


@pytest.mark.campaign
@pytest.mark.parametrize("keys", [("5",), ("8", "v", "c")])
async def test_the_cursor_of_a_tree_stays_on_its_node_when_the_tree_is_computed_anew(job, cache, keys):
    async with running(job, cache, WIDE, *keys) as (app, pilot):
        screen = app.screen
        way = (await press(pilot, *["down"] * 4)).screen.around_row(), screen.label_of(screen.node())
        assert screen.table.cursor_row == 4
        for selection in (app.selection.with_tasks(frozenset({app.job.ranks[0].task})), app.selection):
            app.select(selection)
            await pilot.pause()
            assert (screen.around_row(), screen.label_of(screen.node())) == way


async def test_work_in_the_background_is_not_described_by_the_data_of_the_job(job, cache, monkeypatch):
    """Textual describes work without a description by the ``repr`` of all arguments, on the thread of the keys."""
    described: list[str] = []
    begin = Worker.__init__

    def spied(worker, *words, **options):
        described.append(options["description"])
        begin(worker, *words, **options)

    monkeypatch.setattr(Worker, "__init__", spied)
    async with running(job, cache, WIDE, "2", "4", "9"):
        assert len(described) > 3 and max(map(len, described)) < 100, described


@pytest.mark.campaign
async def test_the_details_of_an_allocation_have_its_call_stack(tmp_path):
    with ExportWriter(tmp_path / "x.sqlite") as export:
        process = export.process(70)
        export.kernel(process, 0, 7, 1_000, 90_000, name="k(int)", correlation_id=None)
        stack = [Frame("cudaMalloc", "/x/libcudart.so.12"), Frame("Pool::grow(int)", "/x/app"), Frame("main", "/x/app")]
        main_thread = export.thread(process, 70, "python")
        export.nvtx_range(main_thread, 0, 100, "load data")
        export.api(main_thread, 10, 60, "cudaMalloc_v3020", 1, stack=stack)
        export.gpu_memory(process, 0, 50, 64, address=64, correlation_id=1)
    async with running([tmp_path / "x.sqlite"], tmp_path / "cache", NARROW, "4", "V", "enter") as (app, _):
        assert "stack Pool::grow ‹ main" in " ".join(app.screen.query_one(DetailPane).texts)
