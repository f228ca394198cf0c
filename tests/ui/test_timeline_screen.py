"""L Timeline: lanes, the cursor from event to event, zooming, marks, and the selection it shares."""

from __future__ import annotations

from itertools import pairwise

import pytest
from jobs import NARROW, WIDE, becomes, line_with, running, screen_text
from support import native
from synthetic import cpu_only_export, empty_export, training_job, whole_graph_export
from textual import events

from nsystui.base.selection import Window
from nsystui.exports.identifiers import tid_of
from nsystui.questions.events.listing import key_of
from nsystui.questions.opening import Source
from nsystui.ui.app import Look, NsystuiApp
from nsystui.ui.screens.events import EventsScreen
from nsystui.ui.screens.host import CallTreeScreen
from nsystui.ui.screens.timeline import TimelineScreen
from nsystui.ui.widgets.charts import LaneChart, LaneLine


def timeline(app: NsystuiApp) -> TimelineScreen:
    assert isinstance(app.screen, TimelineScreen)
    return app.screen


def labels(app: NsystuiApp) -> list[str]:
    return [label.strip() for label in timeline(app).chart.labels]


def ranks(app: NsystuiApp) -> list[str]:
    return [label for label in labels(app) if "rank" in label]


def view(app: NsystuiApp) -> Window:
    return timeline(app).picture.window


# Opening and going back


async def test_l_opens_it_everywhere_and_esc_goes_back(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        for mode in "123456":
            await pilot.press(mode)
            before = type(app.screen)
            await pilot.press("L")
            assert [label[2:] for label in ranks(app)] == [f"rank {rank} GPU" for rank in range(4)]
            assert sum(label.startswith("▾") for label in ranks(app)) == 1
            await pilot.press("L")
            assert "this is the timeline" in screen_text(app)[-1]
            await pilot.press("escape")
            assert type(app.screen) is before


async def test_it_opens_on_the_selection_and_esc_undoes_what_was_selected_here_first(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("enter")
        await pilot.press("L")  # the kernels of the first rank, and their timeline
        chosen = app.selection
        assert line_with(app, "rank 0") and chosen.tasks is not None
        assert ranks(app) == ["▾ rank 0 GPU"]
        await pilot.press("plus", "t")
        assert app.selection.window == view(app) and view(app) != app.job.extent()
        await pilot.press("escape")
        assert app.selection == chosen and isinstance(app.screen, TimelineScreen)
        await pilot.press("escape")
        assert app.current_mode == "kernels" and app.selection == chosen


# Lanes


async def test_the_first_rank_is_open_and_space_opens_and_closes_ranks(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("L")
        own = labels(app)[: labels(app).index("▸ rank 1 GPU")]
        assert own[:2] == ["▾ rank 0 GPU", "NVTX python"] and {"API", "OS", "stream 7"} <= set(own)
        assert labels(app)[timeline(app).chart.cursor_lane] == "▾ rank 0 GPU"
        await pilot.press("space")
        assert labels(app) == ["▸ rank 0 GPU", "▸ rank 1 GPU", "▸ rank 2 GPU", "▸ rank 3 GPU"]
        await pilot.press("down", "space")
        assert ranks(app) == ["▸ rank 0 GPU", "▾ rank 1 GPU", "▸ rank 2 GPU", "▸ rank 3 GPU"]
        assert line_with(app, "step 1")
        await pilot.press("down", "space")
        assert labels(app)[timeline(app).chart.cursor_lane] == "▸ rank 1 GPU"
        await pilot.press("enter")
        assert "stream 7" in labels(app)


async def test_tab_opens_the_next_rank_in_place_of_this_one(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("L", "tab")
        assert ranks(app) == ["▸ rank 0 GPU", "▾ rank 1 GPU", "▸ rank 2 GPU", "▸ rank 3 GPU"]
        assert labels(app)[timeline(app).chart.cursor_lane] == "▾ rank 1 GPU"
        await pilot.press("shift+tab", "shift+tab")
        assert "first rank" in screen_text(app)[-1] and ranks(app)[0] == "▾ rank 0 GPU"


async def test_lanes_fill_the_height(demo_job, cache_directory):
    async with running(demo_job, cache_directory, (200, 60)) as (app, pilot):
        await pilot.press("L")
        chart = timeline(app).chart
        rows = chart.size.height - 1
        assert sum(last - first + 1 for first, last in map(chart.rows_of, chart.in_sight)) == rows
        assert len({first - last for first, last in map(chart.rows_of, chart.in_sight)}) > 1
        # A label stands once, however high its lane is, and lanes with next to nothing stay low.
        assert sum("rank 0 GPU" in line for line in screen_text(app)) == 1
        assert {last - first for first, last in [chart.rows_of(labels(app).index("stream 24"))]} == {0}
        await pilot.press("down")  # a lane, however many lines it has
        assert labels(app)[chart.cursor_lane] == "NVTX python"


async def test_only_the_lanes_in_sight_are_computed(many_ranks, cache_directory):
    async with running(many_ranks, cache_directory, (80, 14)) as (app, pilot):
        await pilot.press("L")
        chart = timeline(app).chart
        await pilot.press("space")
        assert chart.lane_count == 16 and len(chart.in_sight) == 5
        assert sorted(timeline(app).picture.pictures) == list(chart.in_sight)
        for _ in range(4):
            await pilot.press("pagedown")
        assert chart.cursor_lane == 15 and 15 in chart.in_sight
        assert sorted(timeline(app).picture.pictures) == list(chart.in_sight)
        assert all(chart.line(lane) is not None for lane in chart.in_sight)
        await pilot.press("pageup", "pageup", "pageup", "pageup")
        assert chart.cursor_lane == 0 and all(chart.line(lane) is not None for lane in chart.in_sight)


# The view


async def test_zooming_keeps_the_time_under_the_cursor_down_to_the_nanosecond(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("right_square_bracket")
        screen = timeline(app)
        time = screen.time
        while view(app).end - view(app).start > screen.chart.chart_width:
            await pilot.press("plus", "plus")
            first, last = screen.times_of(screen.chart.cursor_column)
            assert first <= time < max(last, first + 1)
        await pilot.press("z")
        assert "1 ns already" in screen_text(app)[-1]
        await pilot.press("0")
        assert view(app) == app.job.extent() and screen.time == time
        for key, words in (("minus", "all of the selection"), ("0", "in view"), ("less_than_sign", "zooms in")):
            await pilot.press(key)
            assert words in screen_text(app)[-1]


async def test_panning_stays_inside_the_selection(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("plus", "plus")
        before = view(app)
        await pilot.press("greater_than_sign")
        assert view(app).start == before.start + (before.end - before.start) // 2
        await pilot.press(*["greater_than_sign"] * 8)
        assert view(app).end == app.job.extent().end
        assert "ends here" in screen_text(app)[-1]
        await pilot.press("ctrl+left")
        assert view(app).end < app.job.extent().end


async def test_going_to_a_time_puts_it_into_the_middle(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press(*["plus"] * 5)
        extent = app.job.extent()
        time = extent.start + (extent.end - extent.start) // 3
        await pilot.press("colon", *str(time), "enter")
        assert timeline(app).time == time
        assert abs((view(app).start + view(app).end) // 2 - time) <= 1
        await pilot.press("colon", *"9999s", "enter")
        assert "does not reach" in screen_text(app)[-1]


# From event to event


async def test_brackets_go_from_event_to_event_and_enter_opens_it(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("right_square_bracket")
        screen = timeline(app)
        first = screen.position.event
        assert screen.time == first[0] and line_with(app, str(first[2]))
        assert line_with(app, "rank 0  device 0  stream") and line_with(app, "launched ")
        await pilot.press("right_square_bracket")
        second = screen.position.event
        assert second[0] > first[0]
        await pilot.press("left_square_bracket")
        assert screen.position.event == first
        await pilot.press("right_square_bracket", "right_square_bracket", "right_square_bracket", "left_square_bracket")
        assert screen.position.event[0] > second[0]
        await pilot.press("left_square_bracket", "enter")
        assert isinstance(app.screen, EventsScreen)
        assert key_of(app.screen.table.current_row) == key_of(second)
        await pilot.press("escape")
        assert timeline(app).position.event == second


async def test_the_view_follows_an_event_out_of_sight(demo_job, cache_directory, monkeypatch):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("right_square_bracket", *["plus"] * 16)
        screen = timeline(app)
        before = view(app)
        for _ in range(3):
            await pilot.press("right_square_bracket")
        assert screen.time >= before.end
        assert view(app).start <= screen.time < view(app).end
        await pilot.press("0", "home")
        said = []  # it is on the screen for a few seconds only
        monkeypatch.setattr(screen, "say", said.append)
        await pilot.press("left_square_bracket", "left_square_bracket", "left_square_bracket")
        assert await becomes(pilot, lambda: any("no more events" in text for text in said))


async def test_the_event_of_a_column_is_its_longest(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("right_square_bracket")
        await pilot.press("left")
        await pilot.press("right")
        assert "the longest of " in line_with(app, " in this column")
        facts = timeline(app).facts
        await pilot.press("enter")
        assert key_of(app.screen.table.current_row) == key_of(facts.row)


async def test_ranges_are_events_of_their_lanes(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("down", "home", "right_square_bracket")
        assert timeline(app).lane.is_host
        assert line_with(app, "rank 0  thread ")
        await pilot.press("enter")
        assert app.screen.values()["kind"] == "nvtx"


# Marks, names, the selection


async def test_the_mark_measures_to_the_cursor_and_t_takes_what_lies_between(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("plus", "m")
        mark = timeline(app).time
        await pilot.press("shift+right")
        time = timeline(app).time
        assert line_with(app, "from the mark").startswith("◆")
        assert "◆" in screen_text(app)[2]
        await pilot.press("t")
        assert app.selection.window == Window(mark, time) == view(app)
        await pilot.press("2")
        assert " + " in screen_text(app)[1]
        await pilot.press("L")
        await pilot.press("m", "m")
        assert timeline(app).position.mark is None


async def test_t_on_everything_says_so(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("t")
        assert "all of the selection" in screen_text(app)[-1] and app.selection.is_everything


async def test_found_names_are_marked_and_counted_and_n_goes_from_one_to_the_next(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L", "space")
        before = [timeline(app).chart.line(lane).letters for lane in range(4)]
        await pilot.press("n")
        assert "find a name with / first" in screen_text(app)[-1]
        await pilot.press("slash", *"allreduce", "enter")
        count = timeline(app).match_count
        assert count and f'"allreduce" {count:,} matches' in screen_text(app)[1]
        lines = [timeline(app).chart.line(lane) for lane in range(4)]
        assert [line.letters for line in lines] == before
        assert all(line.marked and len(line.marked) < len(line.letters) for line in lines)
        await pilot.press("home")
        seen = []
        for _ in range(6):
            await pilot.press("n")
            seen.append((timeline(app).time, timeline(app).chart.cursor_lane))
            assert "AllReduce" in timeline(app).position.event[2]
        assert seen == sorted(seen) and len({lane for _, lane in seen}) > 1
        await pilot.press("N")
        assert (timeline(app).time, timeline(app).chart.cursor_lane) == seen[-2]
        await pilot.press("slash", *["backspace"] * 9, *"qqqq", "enter")
        assert "0 matches" in screen_text(app)[1]
        await pilot.press("n")
        assert "no event matches" in screen_text(app)[-1]
        await pilot.press("slash", *["backspace"] * 9, "enter")
        assert not any(timeline(app).chart.line(lane).marked for lane in range(4))
        await pilot.press("f", *"norm", "enter")
        assert any(timeline(app).chart.line(lane).marked for lane in range(4))


async def test_c_goes_from_a_kernel_to_its_call_and_back(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L", "home", "right_square_bracket", "c")
        screen = timeline(app)
        kernel = screen.facts
        assert screen.lane.calls is not None and screen.position.event[1] == "api"
        assert line_with(app, "launched ") and kernel is not None
        await pilot.press("c")
        assert screen.lane.stream is not None
        assert line_with(app, "launched ")


async def test_l_on_an_event_centres_on_it_in_its_lane(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        for keys in (("6", *["pagedown"] * 30), ("2", "enter", "down", "down")):
            await pilot.press(*keys)
            key = app.screen.event_here()
            await pilot.press("L")
            screen = timeline(app)
            assert screen.time == key.start and key_of(screen.position.event) == key
            assert view(app).start <= key.start < view(app).end
            assert view(app).end - view(app).start < app.job.extent().end - app.job.extent().start
            assert screen.lane in screen.picture.lanes
            await pilot.press("escape")


async def test_the_mouse_draws_a_span_and_its_wheel_zooms(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("L")
        screen, chart = timeline(app), timeline(app).chart
        await pilot.mouse_down(chart, offset=(60, 5))
        await pilot.hover(chart, offset=(80, 5))
        await pilot.mouse_up(chart, offset=(80, 5))
        await pilot.pause()
        left = chart.size.width - chart.chart_width - chart.value_width - 1
        assert screen.position.mark == screen.times_of(60 - left)[0]
        assert chart.cursor_column == 80 - left and line_with(app, "from the mark")
        await pilot.press("t")
        assert app.selection.window is not None
        whole = view(app).end - view(app).start
        await pilot._post_mouse_events([events.MouseScrollUp], chart, offset=(60, 5), button=0)
        await pilot.pause()
        assert view(app).end - view(app).start < whole


async def test_o_leaves_only_the_rank_of_the_lane(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("tab", "tab", "o")
        assert screen_text(app)[1].startswith("rank 2  ") and "▾ rank 2 GPU" in labels(app)
        await pilot.press("o")
        assert "the only one" in screen_text(app)[-1]


# Files


async def test_e_exports_the_operations_in_sight(demo_job, cache_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L")
        await pilot.press("right_square_bracket")
        await pilot.press(*["plus"] * 3, "e")
        assert line_with(app, "export lanes (as drawn) or events?")
        await pilot.press(*["backspace"] * 5, *"events", "enter")
        assert line_with(app, "export to")
        await pilot.press(*["backspace"] * 60, *"lanes.csv", "enter")
        assert "wrote " in screen_text(app)[-1]
        rows = (tmp_path / "lanes.csv").read_text(encoding="utf-8").splitlines()
        starts = [int(row.split(",")[0]) for row in rows[1:]]
        assert starts == sorted(starts) and starts and starts[-1] < view(app).end
        await pilot.press("right_square_bracket", "y")
        assert "copied the row" in screen_text(app)[-1]
        await pilot.press("e", "enter")
        await pilot.press(*["backspace"] * 60, *"drawn.csv", "enter")
        chart = timeline(app).chart
        assert f"wrote {len(chart.in_sight) * chart.chart_width:,} rows" in screen_text(app)[-1]


# What is missing


@pytest.mark.parametrize("make", [cpu_only_export, empty_export])
async def test_without_lanes_it_says_what_to_record_and_keys_say_so(make, tmp_path):
    path = make(tmp_path / "none.sqlite")
    async with running([path], tmp_path / "cache") as (app, pilot):
        await pilot.press("L")
        if not timeline(app).picture.lanes:
            assert line_with(app, "nsys profile -t cuda")
        for key in (
            "plus",
            "n",
            "N",
            "c",
            "tab",
            "right_square_bracket",
            "space",
            "enter",
            "m",
            "t",
            "e",
            "y",
            "o",
            "left",
            "down",
            "g",
            "escape",
            "slash",
        ):
            await pilot.press(key)
        assert app.is_running


async def test_whole_graphs_have_names(tmp_path):
    path = whole_graph_export(tmp_path / "graph.sqlite")
    async with running([path], tmp_path / "cache") as (app, pilot):
        await pilot.press("L")
        assert timeline(app).chart.line(0).letters.endswith("│CUDG│CUDG")
        await pilot.press(*["plus"] * 3)
        assert line_with(app, "CUDA graph") and "GG" not in "".join(screen_text(app))


async def test_without_colours_letters_say_what_a_column_holds(demo_job, cache_directory):
    app = NsystuiApp(Source(tuple(map(str, demo_job)), cache_directory), Look(no_color=True))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        await pilot.press("L")
        await pilot.press("space")
        assert "kKKK" in line_with(app, "rank 1 GPU") and "MM" in line_with(app, "rank 0 GPU")


# Real exports


async def test_real_kernels_have_names_once_zoomed_in(shared_export, cache_directory):
    async with running([shared_export("ddp-a100-rank0of4")], cache_directory, WIDE) as (app, pilot):
        await pilot.press("L")
        await pilot.press(*["plus"] * 11)
        for size in (WIDE, NARROW):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            texts = [timeline(app).chart.line(lane).letters for lane in timeline(app).chart.in_sight]
            assert any("sm80_xmma" in text or "nchw" in text for text in texts)
            assert all(len(line) <= size[0] for line in screen_text(app))


# Drawing


async def test_a_change_of_size_draws_what_was_asked_for_before_in_the_new_width(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("L", "end")
        for size in ((5, 2), (40, 10), (200, 60), (1, 1), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert line_with(app, "▸")


def test_lines_that_are_unknown_say_that_they_are_being_computed():
    chart = LaneChart(label_width=5, value_width=3)
    line = LaneLine("KK", ("compute", "compute"), (1.0, 1.0), (0, 0))
    chart.show(("a", "b"), ("gpu", "gpu"), {0: line}, 0, 10)
    assert chart.line(0) is line and chart.line(1) is None


@pytest.fixture
def cpu_job(written_once):
    """A rank whose threads ran on CPUs for some time."""
    return written_once("cpu lanes", lambda directory: training_job(directory, ranks=1, steps=3, layers=3))


async def first_cpu_lane(app, pilot):
    """The picture of the timeline, and the number of its first lane of a CPU."""
    await pilot.press("L")
    picture = app.screen.picture
    return picture, next(number for number, lane in enumerate(picture.lanes) if lane.is_cpu)


async def test_threads_have_lanes_of_what_they_ran_on_cpus(cpu_job, cache_directory):
    async with running(cpu_job, cache_directory, WIDE) as (app, pilot):
        picture, number = await first_cpu_lane(app, pilot)
        lane = picture.lanes[number]
        # In sum it is what the threads table says.
        running_time = native_sum(cpu_job[0], lane.thread)
        assert picture.timeline.work(lane).length == running_time
        app.screen.action_lane(number - app.screen.chart.cursor_lane)
        await pilot.press("right_square_bracket")
        assert "CPU" in line_with(app, "▸   CPU")
        await becomes(pilot, lambda: any("on a CPU for" in line for line in screen_text(app)))
        assert line_with(app, "on a CPU for")


async def test_n_and_enter_act_on_the_lanes_of_cpus(cpu_job, cache_directory):
    async with running(cpu_job, cache_directory, WIDE) as (app, pilot):
        picture, number = await first_cpu_lane(app, pilot)
        lane = picture.lanes[number]
        switches = native(
            cpu_job[0], "SELECT start FROM SCHED_EVENTS WHERE globalTid = ? ORDER BY start", (lane.thread,)
        )
        starts = sorted({*picture.timeline.events(lane).start.tolist(), *(start for (start,) in switches[:-1])})
        app.screen.action_lane(number - app.screen.chart.cursor_lane)
        app.screen.look_at(None, starts[0])
        seen = [app.screen.time]
        for _ in range(12):
            await pilot.press("n")
            seen.append(app.screen.time)
        assert seen == starts[:13]
        await pilot.press("N")
        assert app.screen.time == starts[11]
        # A function that is looked for.
        own = picture.timeline.events(lane)
        name = own.names[int(own.name[-1])]
        await pilot.press("slash", *name[:6], "enter")
        await pilot.press("n")
        assert name[:6] in own.names[int(own.name[own.start.tolist().index(app.screen.time)])]
        app.screen.look_at(Window(app.screen.time - 1000, app.screen.time + 100_000), app.screen.time)
        await pilot.pause()
        await becomes(pilot, lambda: app.screen.facts is not None and app.screen.facts.interval is not None)
        interval = app.screen.facts.interval
        assert interval.node
        await pilot.press("enter")
        await becomes(pilot, lambda: isinstance(app.screen, CallTreeScreen) and app.screen.nodes is not None)
        assert app.selection.window == interval.window
        assert app.screen.whose.thread == str(tid_of(lane.thread))
        assert app.screen.nodes.calls.samples > 0
        await pilot.press("escape", "escape")
        assert app.current_mode == "timeline"


def native_sum(path, thread: int) -> int:
    """The time between the events in which the scheduler gave a thread a CPU and the next ones, ns."""
    rows = native(path, "SELECT start, isSchedIn FROM SCHED_EVENTS WHERE globalTid = ? ORDER BY start", (thread,))
    return sum(after[0] - before[0] for before, after in pairwise(rows) if before[1])
