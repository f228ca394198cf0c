"""L Timeline: lanes, the cursor from event to event, zooming, marks, and the selection it shares."""

from __future__ import annotations

from itertools import pairwise

import pytest
from jobs import NARROW, WIDE, last_line, line_with, name_of_screen, press, resize, running, screen_text
from support import native
from synthetic import cpu_only_export, empty_export, training_job

from nsystui.base.selection import Window
from nsystui.exports.metadata import tid_of
from nsystui.questions.blocking.dependencies import COMPUTE
from nsystui.questions.blocking.path import critical_path
from nsystui.questions.events.listing import key_of
from nsystui.questions.ranks.steps import step_times
from nsystui.questions.timeline.events import thread_spans
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens.timeline import TimelineScreen
from nsystui.ui.widgets.lane_chart import LaneChart, LaneLine

ALLOCATIONS = """
    SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId WHERE value LIKE '%cudaMalloc%'
"""


def timeline(app: NsystuiApp) -> TimelineScreen:
    assert name_of_screen(app) == "TimelineScreen"
    return app.screen


def labels(app: NsystuiApp) -> list[str]:
    return [label.strip() for label in timeline(app).chart.labels]


def label_here(app: NsystuiApp) -> str:
    return labels(app)[timeline(app).chart.cursor_lane]


def ranks(app: NsystuiApp) -> list[str]:
    return [label for label in labels(app) if "rank" in label]


def view(app: NsystuiApp) -> Window:
    return timeline(app).picture.window


def length(window: Window) -> int:
    return window.end - window.start


@pytest.mark.campaign
async def test_l_opens_it_everywhere_on_the_selection_and_esc_goes_back(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        for mode in "356":
            before = type((await press(pilot, mode)).screen)
            await pilot.press("L")
            assert [label[2:] for label in ranks(app)] == [f"rank {rank} GPU" for rank in range(4)]
            assert sum(label.startswith("▾") for label in ranks(app)) == 1
            assert "this is the timeline" in last_line(await press(pilot, "L"))
            assert type((await press(pilot, "escape")).screen) is before
        chosen = (await press(pilot, "1", "enter", "L")).selection  # the kernels of the first rank, and their timeline
        assert line_with(app, "rank 0") and chosen.tasks is not None and ranks(app) == ["▾ rank 0 GPU"]
        assert (await press(pilot, "plus", "t")).selection.window == view(app) and view(app) != app.job.extent()
        await pilot.press("escape")  # what was selected here is undone first
        assert app.selection == chosen and name_of_screen(app) == "TimelineScreen"
        assert (await press(pilot, "escape")).current_mode == "kernels" and app.selection == chosen


@pytest.mark.campaign
async def test_lanes_fill_the_height(demo_job, cache_directory):
    async with running(demo_job, cache_directory, (200, 60), "L") as (app, pilot):
        chart = timeline(app).chart
        rows = chart.size.height - 1
        assert sum(last - first + 1 for first, last in map(chart.rows_of, chart.in_sight)) == rows
        assert len({first - last for first, last in map(chart.rows_of, chart.in_sight)}) > 1
        # A label stands once, however high its lane is, and lanes with next to nothing stay low.
        assert sum("rank 0 GPU" in line for line in screen_text(app)) == 1
        assert {last - first for first, last in [chart.rows_of(labels(app).index("stream 24"))]} == {0}
        assert label_here(await press(pilot, "down")) == "NVTX python"  # a lane, however many lines it has
        await pilot.press("end")
        for size in ((5, 2), (40, 10), (1, 1), (80, 24)):  # what was asked for before is drawn in the new width
            await resize(pilot, *size)
        assert line_with(app, "▸")


@pytest.mark.campaign
async def test_only_the_lanes_in_sight_are_computed(many_ranks, cache_directory):
    async with running(many_ranks, cache_directory, (80, 14), "L", "space") as (app, pilot):
        chart = timeline(app).chart
        assert chart.lane_count == 16 and len(chart.in_sight) == 5
        assert sorted(timeline(app).picture.pictures) == list(chart.in_sight)
        await pilot.press(*["pagedown"] * 4)
        assert chart.cursor_lane == 15 and 15 in chart.in_sight
        assert sorted(timeline(app).picture.pictures) == list(chart.in_sight)
        assert all(chart.line(lane) is not None for lane in chart.in_sight)
        await pilot.press(*["pageup"] * 4)
        assert chart.cursor_lane == 0 and all(chart.line(lane) is not None for lane in chart.in_sight)


@pytest.mark.campaign
async def test_the_view_zooms_around_the_cursor_and_stays_inside_the_selection(demo_job, cache_directory):
    async with running(demo_job, cache_directory, NARROW, "L", "t") as (app, pilot):
        assert "all of the selection" in last_line(app) and app.selection.is_everything
        for key, words in (("minus", "all of the selection"), ("0", "in view"), ("less_than_sign", "zooms in")):
            assert words in last_line(await press(pilot, key))
        before = view(await press(pilot, "plus", "plus"))
        assert "…" not in screen_text(app)[1]
        assert view(await press(pilot, "greater_than_sign")).start == before.start + length(before) // 2
        extent = (await press(pilot, *["greater_than_sign"] * 8)).job.extent()
        assert view(app).end == extent.end and "ends here" in last_line(app)
        assert view(await press(pilot, "ctrl+left")).end < extent.end

        time = extent.start + length(extent) // 3
        assert timeline(await press(pilot, "plus", "plus", "plus", "colon", *str(time), "enter")).time == time
        assert abs((view(app).start + view(app).end) // 2 - time) <= 1
        assert "does not reach" in last_line(await press(pilot, "colon", *"9999s", "enter"))

        screen, time = timeline(await press(pilot, "0", "home", "right_square_bracket")), timeline(app).time
        while length(view(app)) > screen.chart.chart_width:
            await pilot.press(*["plus"] * 4)
            first, last = screen.times_of(screen.chart.cursor_column)
            assert first <= time < max(last, first + 1)
        assert "1 ns already" in last_line(await press(pilot, "z"))
        assert view(await press(pilot, "0")) == extent and screen.time == time


@pytest.mark.campaign
async def test_brackets_go_from_event_to_event_and_enter_opens_it(demo_job, cache_directory):
    async with running(demo_job, cache_directory, NARROW, "L", "right_square_bracket") as (app, pilot):
        screen = timeline(app)
        first = screen.position.event
        assert screen.time == first[0] and line_with(app, str(first[2]))
        assert line_with(app, "rank 0  device 0  stream") and line_with(app, "launched ")
        second = timeline(await press(pilot, "right_square_bracket")).position.event
        assert second[0] > first[0]
        assert timeline(await press(pilot, "left_square_bracket")).position.event == first
        await pilot.press("right_square_bracket", "right_square_bracket", "right_square_bracket", "left_square_bracket")
        assert screen.position.event[0] > second[0]
        assert name_of_screen(await press(pilot, "left_square_bracket", "enter")) == "EventsScreen"
        assert key_of(app.screen.table.current_row) == key_of(second)
        assert timeline(await press(pilot, "escape")).position.event == second

        await pilot.press("left")
        await pilot.press("right")  # the event of a column is its longest
        assert "the longest of " in line_with(app, " in this column")
        facts = screen.facts
        assert key_of((await press(pilot, "enter")).screen.table.current_row) == key_of(facts.row)
        await pilot.press("escape")

        before = view(await press(pilot, "0", "home", "right_square_bracket", *["plus"] * 16))
        await pilot.press(*["right_square_bracket"] * 3)
        assert screen.time >= before.end
        assert view(app).start <= screen.time < view(app).end, "the view follows an event out of sight"
        assert "no more events" in last_line(await press(pilot, "0", "home", *["left_square_bracket"] * 3))

        await pilot.press("home", "right_square_bracket", "c")  # from a kernel to its call and back
        assert screen.lane.calls is not None and screen.position.event[1] == "api"
        assert line_with(app, "launched ") and screen.facts is not None
        await pilot.press("c")
        assert screen.lane.stream is not None and line_with(app, "launched ")

        await pilot.press(*["up"] * 9, "down", "home", "right_square_bracket")  # ranges are events of their lanes
        assert screen.lane.is_host and line_with(app, "rank 0  thread ")
        assert (await press(pilot, "enter")).screen.values()["kind"] == "nvtx"


@pytest.mark.campaign
async def test_l_on_an_event_centres_on_it_in_its_lane(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        for keys in (("6", *["pagedown"] * 30), ("2", "enter", "down", "down")):
            key = (await press(pilot, *keys)).screen.event_here()
            screen = timeline(await press(pilot, "L"))
            assert screen.time == key.start and key_of(screen.position.event) == key
            assert view(app).start <= key.start < view(app).end and length(view(app)) < length(app.job.extent())
            assert screen.lane in screen.picture.lanes
            await pilot.press("escape")


@pytest.mark.campaign
async def test_searched_names_are_marked_and_counted_and_n_goes_from_one_to_the_next(demo_job, cache_directory):
    async with running(demo_job, cache_directory, NARROW, "L", "space") as (app, pilot):
        before = [timeline(app).chart.line(lane).letters for lane in range(4)]
        assert "search a name with / first" in last_line(await press(pilot, "n"))
        await press(pilot, "slash", *"devkernel_allreduce", "enter")
        lines = [timeline(app).chart.line(lane) for lane in range(4)]
        assert [line.letters for line in lines] == before
        assert all(line.marked and len(line.marked) < len(line.letters) for line in lines)
        seen = []
        for _ in range(6):
            seen.append((timeline(app).time, timeline(app).chart.cursor_lane))
            assert "AllReduce" in timeline(app).position.event[2]
            await pilot.press("n")
        assert seen == sorted(seen) and len({lane for _, lane in seen}) > 1
        assert (timeline(await press(pilot, "N")).time, timeline(app).chart.cursor_lane) == seen[-1]
        assert "no event matches" in last_line(await press(pilot, "slash", *"qqqq", "enter"))
        assert "0 matches" in screen_text(app)[1]
        assert "no event matches" in last_line(await press(pilot, "n"))
        await pilot.press("slash", "enter")
        assert not any(timeline(app).chart.line(lane).marked for lane in range(4))
        await pilot.press("f", *"norm", "enter")
        assert any(timeline(app).chart.line(lane).marked for lane in range(4))


@pytest.mark.campaign
async def test_a_search_goes_to_the_first_match_of_all_ranks_counts_them_and_n_begins_again(demo_job, cache_directory):
    expected = [native(path, ALLOCATIONS)[0][0] for path in demo_job]
    async with running(demo_job, cache_directory, NARROW, "L", "end") as (app, pilot):
        await press(pilot, "slash", *"cudaMalloc", "enter")
        assert f'all ranks · all time · "cudaMalloc" {sum(expected)} matches' in screen_text(app)[1]
        seen = []
        for _ in range(sum(expected)):
            seen.append((timeline(app).time, timeline(app).lane.rank))
            assert timeline(app).position.event[2] == "cudaMalloc"
            await pilot.press("n")
        assert seen == sorted(seen) and {rank for _, rank in seen} == set(range(len(expected)))
        assert "the first match again" in last_line(app)
        assert (timeline(app).time, timeline(app).lane.rank) == seen[0]
        assert "the last match again" in last_line(await press(pilot, "N")) and timeline(app).time == seen[-1][0]
        await press(pilot, "slash", *"flash", "enter")  # nothing of the search before is left
        assert '· "flash" ' in screen_text(app)[1] and "flash" in timeline(app).position.event[2]


@pytest.mark.campaign
async def test_e_exports_the_lanes_as_they_are_drawn(demo_job, cache_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L", "right_square_bracket", *["plus"] * 3, "e")
        assert line_with(app, "export (.svg: the drawing) to")
        assert app.screen.prompt.value == "demo-lanes.csv"
        chart = timeline(await press(pilot, *"lanes.csv", "enter")).chart
        written = last_line(app)
        assert f"wrote {len(chart.in_sight) * chart.chart_width:,} rows" in written
        assert f"lanes.csv in {tmp_path.parents[2]}" in written
        assert "copied the row" in last_line(await press(pilot, "right_square_bracket", "y"))


@pytest.mark.campaign
@pytest.mark.parametrize("make", [cpu_only_export, empty_export])
async def test_without_lanes_it_says_what_to_record_and_keys_say_so(make, tmp_path):
    async with running([make(tmp_path / "none.sqlite")], tmp_path / "cache", NARROW, "L") as (app, pilot):
        if not timeline(app).picture.lanes:
            assert line_with(app, "nsys profile -t cuda")
        await pilot.press("plus", "n", "N", "c", "tab", "right_square_bracket", "space", "enter", "m", "t", "e", "y")
        assert (await press(pilot, "o", "left", "down", "g", "escape", "slash")).is_running


@pytest.mark.campaign
async def test_real_kernels_have_names_once_zoomed_in(shared_export, cache_directory):
    async with running([shared_export("ddp-a100-rank0of4")], cache_directory, WIDE) as (app, pilot):
        await pilot.press("L", *["plus"] * 11)
        for size in (WIDE, NARROW):
            await resize(pilot, *size)
            texts = [timeline(app).chart.line(lane).letters for lane in timeline(app).chart.in_sight]
            assert any("sm80_xmma" in text or "nchw" in text for text in texts)
            assert all(len(line) <= size[0] for line in screen_text(app))


def test_lines_that_are_unknown_say_that_they_are_being_computed():
    chart = LaneChart(label_width=5, value_width=3)
    line = LaneLine("KK", ("compute", "compute"), (1.0, 1.0), (0, 0))
    chart.show(("a", "b"), ("gpu", "gpu"), {0: line}, 0, 10)
    assert chart.line(0) is line and chart.line(1) is None


@pytest.mark.campaign
async def test_threads_have_lanes_of_what_they_ran_on_cpus(written_once, cache_directory):
    cpu_job = written_once("cpu lanes", lambda directory: training_job(directory, ranks=1, steps=3, layers=3))
    async with running(cpu_job, cache_directory, WIDE, "L") as (app, pilot):
        screen, picture = timeline(app), timeline(app).picture
        number, lane = next((number, lane) for number, lane in enumerate(picture.lanes) if lane.is_cpu)
        switches = native(
            cpu_job[0], "SELECT start, isSchedIn FROM SCHED_EVENTS WHERE globalTid = ? ORDER BY start", (lane.thread,)
        )
        # In sum it is what the threads table says.
        ran = sum(after[0] - before[0] for before, after in pairwise(switches) if before[1])
        assert picture.timeline.work(lane).length == ran
        screen.action_lane(number - screen.chart.cursor_lane)
        assert "CPU" in line_with(await press(pilot, "right_square_bracket"), "▸   CPU")
        assert line_with(app, "on a CPU for")

        own = picture.timeline.events(lane)
        starts = sorted({*own.start.tolist(), *(start for start, _ in switches[:-1])})
        screen.look_at(None, starts[0])
        assert [screen.time, *[timeline(await press(pilot, "right_square_bracket")).time for _ in range(12)]] == starts[
            :13
        ]
        await pilot.press("left_square_bracket")
        assert screen.time == starts[11]
        name = own.names[int(own.name[-1])]  # a function that is searched
        await pilot.press("slash", *name[:6], "enter", "n")
        assert name[:6] in own.names[int(own.name[own.start.tolist().index(screen.time)])]
        screen.look_at(Window(screen.time - 1000, screen.time + 100_000), screen.time)
        await pilot.pause()
        interval = screen.facts.interval
        assert interval.node
        assert name_of_screen(await press(pilot, "enter")) == "PartialCallTreeScreen"
        assert app.selection.window == interval.window and app.screen.whose.thread == str(tid_of(lane.thread))
        assert app.screen.nodes.calls.samples > 0
        assert (await press(pilot, "escape", "escape")).current_mode == "timeline"


@pytest.mark.campaign
async def test_the_critical_path_of_the_step_under_the_cursor_has_a_lane(
    demo_job, cache_directory, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    async with running(demo_job, cache_directory, WIDE, "L") as (app, pilot):
        screen, job = timeline(app), app.job
        steps = step_times(job.steps())[job.ranks[0].task]
        window = steps.window(1)
        screen.look_at(window, window.start + 1000)
        assert f"critical path of step {steps.numbers[1]}: " in last_line(await press(pilot, "I"))
        assert labels(app)[:2] == ["▾ rank 0 GPU", f"path step {steps.numbers[1]}"]
        lane = screen.picture.lanes[1]
        own, pieces = screen.picture.timeline.events(lane), critical_path(job, lane.task, window).pieces
        assert (own.start[0], own.end[-1]) == (window.start, window.end) == (pieces[0].start, pieces[-1].end)
        assert {one.category for one in thread_spans(screen.picture.timeline, lane, window, 200)} <= {
            "compute",
            "nccl",
            "memory",
            "api",
            "idle",
        }

        screen.action_lane(1 - screen.chart.cursor_lane)
        following = own.start[own.start > screen.time][:5].tolist()
        starts = [timeline(await press(pilot, "right_square_bracket")).time for _ in range(5)]
        assert starts == following  # from piece to piece
        number = max(
            (n for n, one in enumerate(pieces) if one.kind == COMPUTE), key=lambda n: pieces[n].end - pieces[n].start
        )
        piece = pieces[number]
        screen.look_at(Window(piece.start, piece.end), piece.start + 1)
        await pilot.pause()
        assert line_with(app, f"on the critical path of step {steps.numbers[1]}")
        assert key_of(screen.event_row()).row == piece.row

        screen.look_at(window, window.start + 1000)
        await press(pilot, "e", *"path.svg", "enter")
        assert f"path step {steps.numbers[1]}" in (tmp_path / "path.svg").read_text(encoding="utf-8")
        await press(pilot, "I")
        assert not any(label.startswith("path") for label in labels(app))
        screen.look_at(None, screen.picture.base.start)
        assert "no step at this time" in last_line(await press(pilot, "I"))
