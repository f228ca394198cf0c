"""The event list: pages, positions and searches agree with a plainly sorted list of everything."""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import campaign
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from support import session_over
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture

from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.questions.events import index as event_index
from nsystui.questions.events import listing as events_module
from nsystui.questions.events.kinds import EventKind, events_query, kinds_of
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, EventList, default_kinds, key_of, window_of
from nsystui.questions.kernels.summary import Names, kernel_instances
from nsystui.questions.queries import paged, time_index
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.questions.queries.time_index import TimeIndex
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.session import Session

KEYS = [column.key for column in EVENT_COLUMNS]
ORDER = list(EventKind)
RUNTIMES = (EventKind.UCX, EventKind.OPENACC, EventKind.OPENMP)
START = 1_780_000_000_000_000_000
"""The session's start of the first report; other reports begin later."""
EVERYTHING = Selection()


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """Two reports 5,000 ns apart with every kind of event, crowded at some moments and far apart at others."""
    place, dice = tmp_path_factory.mktemp("events"), random.Random(3)
    with closing(Session()) as session:
        for number in range(2):
            capture = Capture(utc_epoch_ns=START + 5_000 * number)
            with ExportWriter(place / f"rank{number}.sqlite", session=capture) as e:
                process = e.process(5_000 + number)
                main = e.thread(process, process.pid, "main")
                for event in range(250):
                    start = dice.choice([7, 1_000, 1_001, dice.randrange(-200, 3_000), dice.randrange(10**7), 10**9])
                    end = start + dice.choice([0, 1, 50, dice.randrange(10**6)])
                    name = dice.choice(["alpha", "Beta", "gamma", ""])
                    kind = event % 10
                    if kind == 0:
                        e.api(main, start, end, f"cuda{name}_v7000", event)
                    elif kind in (1, 2):
                        e.kernel(process, event % 2, 7, start, end, name=f"{name}(int)", correlation_id=event - kind)
                    elif kind == 3:
                        e.kernel(process, 0, 28, start, end, name=f"ncclDevKernel_{name}(x)", correlation_id=None)
                    elif kind == 4:
                        e.memcpy(process, 0, 7, start, end, size=64, kind="HtoD", correlation_id=event)
                    elif kind == 5:
                        e.memset(process, 0, 7, start, end, size=64, correlation_id=event)
                    elif kind == 6:
                        e.graph_launch(process, 0, 7, start, end, graph_id=4, graph_exec_id=5, correlation_id=event)
                    elif kind == 7:
                        e.sync(process, 0, 7, start, end, correlation_id=event)
                    elif kind == 8:
                        e.nvtx_range(main, start, None if event % 3 == 0 else end, name)
                    else:
                        e.nvtx_mark(main, start, name)
                        e.osrt(main, start, end, "read")
                        e.mpi_other(main, start, end, "MPI_Init")
                        e.ucx(main, start, end, "ucp_worker_progress")
                        e.openacc(main, start, end, "Wait", kind="OTHER")
                        e.openmp(main, start, end, "Parallel region")
            session.add(place / f"rank{number}.sqlite")
        yield session


def plain(session: Session) -> list[tuple[Any, ...]]:
    """Return all events, read kind by kind and sorted in Python."""
    found = []
    for kind in ORDER:
        for row in session.rows(events_query(kind, EVERYTHING, ranked_tasks(session))):
            start, duration, word, _, name, rank, report, process, thread, device, stream, correlation, number = row
            tid = None if thread is None else thread & 0xFFFFFF
            pid = (process >> 24) & 0xFFFFFF
            values = (start, word, name, duration, rank, device, stream, tid, correlation, pid, report, process, number)
            found.append(((start, ORDER.index(kind), report, number), values))
    return [values for _, values in sorted(found, key=lambda item: item[0])]


def of_kinds(rows: Sequence[tuple[Any, ...]], kinds: Sequence[EventKind]) -> list[tuple[Any, ...]]:
    return [row for row in rows if EventKind(row[1]) in kinds]


def places_of(session: Session, selection: Selection = EVERYTHING) -> tuple[Any, ...]:
    """Return edges, counts and rows of the list of all events."""
    found = build(session, selection)
    return found.index.low, found.index.width, found.index.before.tolist(), found.total, found.page(0, len(found))


def is_selected(row: tuple[Any, ...], selection: Selection) -> bool:
    values = dict(zip(KEYS, row, strict=True))
    start, window = values["start"], selection.window
    is_open = values["kind"] == "nvtx" and values["duration"] is None
    end = 2**62 if is_open else start + (values["duration"] or 0)
    return (
        (window is None or (start < window.end and (start >= window.start or end > window.start)))
        and (selection.name is None or selection.name.matches(values["name"] or ""))
        and (not selection.devices or values["device"] in {None, *selection.devices})
        and (selection.tasks is None or Task(values["report"], values["process"]) in selection.tasks)
    )


def build(session: Session, selection: Selection = EVERYTHING, kinds: tuple[EventKind, ...] = ()) -> EventList:
    return EventList.build(session, selection, ranked_tasks(session), kinds)


SELECTIONS = {
    "everything": EVERYTHING, "a window": Selection(window=Window(900, 2_000)),
    "one moment": Selection(window=Window(7, 8)), "the second report's time": Selection(window=Window(5_000, 10**7)),
    "a name": Selection(name=NameFilter("alpha")), "no such name": Selection(name=NameFilter("omega")),
    "a device": Selection(devices=frozenset({1})),
    "one rank": Selection(tasks=frozenset({Task(1, (1 << 48) | (5_001 << 24))})),
    "nobody": Selection(tasks=frozenset()), "before everything": Selection(window=Window(-10_000, -9_000)),
}  # fmt: skip
_LONGER = (*SELECTIONS,)[3:]
KINDS = {
    "default": (), "all": tuple(EventKind), "one": (EventKind.KERNEL,),
    "gpu": (EventKind.MEMORY, EventKind.NCCL, EventKind.KERNEL),
}  # fmt: skip


@pytest.mark.campaign
def test_a_page_that_takes_long_is_told_as_computing(busy, monkeypatch):
    waiting: list[str] = []
    monkeypatch.setattr(busy, "waiting", lambda name: (waiting.append(name), nullcontext())[1])
    answer = build(busy)
    assert waiting == []
    assert len(answer.page(0, 5)) == 5 and waiting == ["events"]


@pytest.fixture(scope="module")
def everything(busy):
    return plain(busy)


@pytest.fixture(scope="module")
def listed(busy):
    """Return the default list, in many bins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_index, "_ROWS_PER_BIN", 40)
        return build(busy)


@pytest.fixture(scope="module")
def whole(busy, everything):
    """Return the expected value of ``listed``."""
    return of_kinds(everything, default_kinds(busy))


@pytest.mark.campaign
def test_calls_of_ucx_and_events_of_openacc_and_openmp_are_listed_without_being_asked_for(busy):
    assert set(RUNTIMES) <= set(default_kinds(busy)) and EventKind.OS not in default_kinds(busy)
    found = build(busy, kinds=RUNTIMES)
    page = [dict(zip(KEYS, row, strict=True)) for row in found.page(0, len(found))]
    expected = {
        ("ucx", "ucp_worker_progress"): busy.count(tables.ucx_calls),
        ("openacc", "Wait"): busy.count(tables.openacc_events),
        ("openmp", "Parallel region"): busy.count(tables.openmp_events),
    }
    assert Counter((row["kind"], row["name"]) for row in page) == expected
    assert all(row["tid"] is not None and row["rank"] is not None for row in page)


class TestPages:
    @pytest.mark.parametrize(("rows_per_bin", "selection", "kinds"), [
        *[(1, selection, "all") for selection in SELECTIONS if selection not in _LONGER],
        (1, "everything", "gpu"),
        pytest.param(1, "everything", "default", marks=pytest.mark.campaign),
        pytest.param(200, "a window", "all", marks=pytest.mark.campaign),
        *[pytest.param(1, selection, "all", marks=pytest.mark.campaign) for selection in _LONGER],
        *[pytest.param(200, name, "all", marks=pytest.mark.campaign) for name in ("everything", "one rank")],
        pytest.param(1, "everything", "one", marks=pytest.mark.campaign),
    ])  # fmt: skip
    def test_pages_of_any_size_are_the_sorted_whole(
        self, busy, everything, monkeypatch, rows_per_bin, selection, kinds
    ):
        monkeypatch.setattr(event_index, "_ROWS_PER_BIN", rows_per_bin)
        selection, kinds = SELECTIONS[selection], KINDS[kinds]
        found = build(busy, selection, kinds)
        all_of_kinds = of_kinds(everything, kinds or default_kinds(busy))
        expected = [row for row in all_of_kinds if is_selected(row, selection)]
        assert (len(found), found.total) == (len(expected), len(all_of_kinds))
        size = max(1, len(expected) // 2)
        assert [row for offset in range(0, len(expected) + 1, size) for row in found.page(offset, size)] == expected

    def test_kinds_that_come_twice_count_once(self):
        assert kinds_of("kernel, nccl,kernel") == (EventKind.KERNEL, EventKind.NCCL)

    def test_os_runtime_calls_show_only_when_asked_for_or_alone(self, tmp_path, session):
        with ExportWriter(tmp_path / "os.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            export.osrt(main, 1, 2, "read")
            export.api(main, 1, 2, "cudaFree_v3020", 1)
        session.add(tmp_path / "os.sqlite")
        assert default_kinds(session) == (EventKind.API, EventKind.OS)

    @pytest.mark.campaign
    def test_domains_stand_before_the_names_of_ranges_and_times_far_apart_do_not_take_the_memory(
        self, tmp_path, session
    ):
        with ExportWriter(tmp_path / "d.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            export.nvtx_domain(main, 0, 1, "NCCL")
            export.nvtx_range(main, 1, 2, "ncclAllReduce", domain_id=1, registered=True)
            export.nvtx_range(main, 3, 4, "step 0")
            export.nvtx_range(main, 5, 6, "orphan", domain_id=9)
            export.nvtx_mark(main, 2**53, "x")
        session.add(tmp_path / "d.sqlite")
        found = build(session)
        assert found.index.bins < 9
        assert [(row[0], row[2]) for row in found.page(0, 9)] == [
            (1, "NCCL:ncclAllReduce"), (3, "step 0"), (5, "orphan"), (2**53, "x"),
        ]  # fmt: skip
        assert len(build(session, Selection(name=NameFilter("nccl:nccl")))) == 1

    @pytest.mark.parametrize(("key", "descending"), campaign.first(
        1, [("tid", False), ("start", True), ("kind", False), ("name", True), ("duration", False), ("stream", True)]
    ))  # fmt: skip
    def test_sorted_by_a_column_it_is_the_same_rows(self, busy, everything, key, descending):
        kinds = (EventKind.KERNEL, EventKind.MARK)
        found = build(busy, EVERYTHING, kinds).sorted_by(key, descending)
        rows = [row for offset in range(0, len(found), 70) for row in found.page(offset, 70)]
        assert sorted(rows, key=repr) == sorted(of_kinds(everything, kinds), key=repr)
        values = [row[KEYS.index(key)] for row in rows]
        there = [value for value in values if value is not None]
        assert values == sorted(there, reverse=descending) + [None] * values.count(None)


def test_a_list_of_nothing_answers_everything(busy, tmp_path, session):
    session.add(synthetic.empty_export(tmp_path / "empty.sqlite"))
    assert "record with" in build(session).notes[0]
    for nothing in (build(session), build(busy, SELECTIONS["nobody"])):
        assert (len(nothing), list(nothing.page(0, 10)), list(nothing.page(5, 5))) == (0, [], [])
        for key in ("start", "name", "tid"):
            found = nothing.sorted_by(key, True)
            assert (len(found), list(found.page(0, 10))) == (0, [])
        assert nothing.position(EventKey(0, EventKind.KERNEL, 1, 0)) is None
        assert [nothing.at_time(moment) for moment in (-5, 0, 5, 10**12)] == [0] * 4
        assert nothing.find(0, True) is nothing.find(0, False) is None


class TestPlaces:
    @pytest.mark.campaign
    def test_every_event_of_a_selection_is_found_where_it_stands_and_others_have_no_place(
        self, busy, everything, monkeypatch
    ):
        selection, dice = SELECTIONS["a window"], random.Random(1)
        inside = [row for row in everything if is_selected(row, selection)]
        outside = [row for row in everything if not is_selected(row, selection)]
        for rows_per_bin in (1, 200):
            monkeypatch.setattr(event_index, "_ROWS_PER_BIN", rows_per_bin)
            found = build(busy, selection, tuple(EventKind))
            for index in range(0, len(inside), max(1, len(inside) // 5)):
                assert found.position(key_of(inside[index])) == index
            assert {found.position(key_of(row)) for row in dice.sample(outside, 5)} == {None}

    def test_an_event_that_is_not_in_the_list_has_no_place(self, listed, everything):
        hidden = next(row for row in everything if row[1] == EventKind.OS.value)
        key = key_of(listed.page(10, 1)[0])
        others = {"report": [9], "row": [10**9], "start": [key.start + 1, 2**62, -(2**62)]}
        wrong = [replace(key, **{field: value}) for field, values in others.items() for value in values]
        assert {listed.position(one) for one in (key_of(hidden), *wrong)} == {None}

    @pytest.mark.campaign
    @settings(max_examples=15, deadline=None)
    @given(moment=st.one_of(st.integers(-1_000, 8_000), st.integers(0, 2 * 10**9), st.sampled_from([7, 1_000, 10**9])))
    def test_a_moment_is_at_the_first_event_from_then_on(self, listed, whole, moment):
        starts = [row[0] for row in whole]
        expected = next((index for index, start in enumerate(starts) if start >= moment), len(starts) - 1)
        assert listed.at_time(moment) == expected

    @pytest.mark.campaign
    @settings(max_examples=15, deadline=None)
    @given(
        index=st.integers(0, 420), forward=st.booleans(),
        name=st.sampled_from([None, "alpha", "!alpha", "Beta", "/^cuda/", "omega"]),
        kind=st.sampled_from([None, EventKind.KERNEL, EventKind.GRAPH, EventKind.MARK]),
    )  # fmt: skip
    def test_searching_finds_the_nearest_that_fits(self, listed, whole, index, forward, name, kind):
        wanted = NameFilter(name) if name else None
        fits = [
            number
            for number, row in enumerate(whole if index < len(whole) else ())
            if (kind is None or row[1] == kind.value) and (wanted is None or wanted.matches(row[2] or ""))
        ]
        later, earlier = ([one for one in fits if one > index], [one for one in fits if one < index])
        assert listed.find(index, forward, wanted, kind) == next(iter(later if forward else reversed(earlier)), None)

    def test_every_row_says_where_it_is_from_and_has_its_own_span_and_key(self, everything):
        for row in everything:
            window, key, values = window_of(row), key_of(row), dict(zip(KEYS, row, strict=True))
            assert (window.start, window.end - window.start) == (row[0], row[3] or 0)
            assert (key.kind.value, key.start, key.report) == (row[1], row[0], values["report"])
            assert (values["rank"], values["pid"]) == (values["report"], 5_000 + values["report"])
            assert (values["tid"] is None) == (values["device"] is not None)


class TestKeptCounts:
    """The index of the list of all events, from counts in the cache."""

    @pytest.fixture(scope="class")
    def ranks(self, tmp_path_factory) -> list[Path]:
        """Return three exports whose clocks begin some ns apart, with events at different times."""
        place = tmp_path_factory.mktemp("ranks")
        return [_rank(place / f"rank{rank}.sqlite", rank) for rank in range(3)]

    @pytest.fixture(scope="class")
    def in_memory(self, ranks) -> Iterator[Session]:
        """Yield the three exports in a session without a cache."""
        with closing(session_over(*ranks)) as session:
            yield session

    def listed(self, paths: Sequence[Path], cache: Path | None) -> tuple[Any, ...]:
        with closing(session_over(*paths, cache=cache and Cache(cache))) as session:
            return places_of(session)

    @pytest.mark.campaign
    def test_they_are_the_same_computed_and_kept_and_other_bins_beside_other_reports(self, ranks, tmp_path):
        for some in (ranks, [ranks[2], ranks[0]]):
            expected = self.listed(some, None)
            assert self.listed(some, tmp_path / "cache") == expected
            assert list((tmp_path / "cache").glob("*/result=starts-kernel=*"))
        assert self.listed(some, tmp_path / "cache") == expected, "all kept"

    @pytest.mark.campaign
    def test_they_agree_with_what_is_counted_row_by_row(self, in_memory):
        everyone = Selection(tasks=frozenset(item.task for item in ranked_tasks(in_memory)))
        assert places_of(in_memory, everyone) == places_of(in_memory)

    def test_a_search_goes_on_through_every_bin(self, in_memory):
        listed = build(in_memory)
        rare = [number for number, row in enumerate(listed.page(0, len(listed))) if str(row[2]).startswith("rare(")]
        searches = {
            (0, True): rare[0], (len(listed) - 1, False): rare[-1], (rare[-1], True): None, (rare[0], False): None,
        }  # fmt: skip
        assert {search: listed.find(*search, NameFilter("rare")) for search in searches} == searches

    @pytest.mark.campaign
    def test_a_search_that_knows_the_names_finds_the_same(self, ranks, tmp_path, in_memory, monkeypatch):
        names = {"rare": 0, "!rare": 100, "/^cuda/": 0, "none": 0}
        searches = [(index, True, NameFilter(name)) for name, index in names.items()]
        plain = build(in_memory)  # without kept counts, names are not read first
        expected = [plain.find(*search) for search in searches]
        monkeypatch.setattr(events_module, "_MANY", 1)
        for _ in range(2):  # the names are counted, then found
            with closing(session_over(*ranks, cache=Cache(tmp_path / "cache"))) as kept:
                listed = build(kept)
                for search, number in zip(searches, expected, strict=True):
                    assert listed.find(*search) == number, search
            assert list((tmp_path / "cache").glob("*/result=event-names-kernel=*"))

    def test_kinds_without_a_name_that_passes_are_not_searched(self, ranks, tmp_path, monkeypatch):
        monkeypatch.setattr(events_module, "_MANY", 1)
        with closing(Session(cache=Cache(tmp_path / "cache"))) as session:
            session.add(ranks[0])
            kinds = (EventKind.API, EventKind.KERNEL, EventKind.NVTX)
            names = {kind: events_module._names(session, kind) for kind in kinds[:2]}
            for kind, other in (kinds[:2], kinds[1::-1]):
                for name in names[kind] - names[other]:
                    found = events_module.kinds_with_name(session, kinds, NameFilter(f"/^{re.escape(name)}$/"))
                    assert found == (kind, EventKind.NVTX)
            assert events_module.kinds_with_name(session, kinds, NameFilter("none has it")) == (EventKind.NVTX,)


def _rank(path: Path, rank: int) -> Path:
    capture = Capture(utc_epoch_ns=START + 777 * rank, environment={"RANK": str(rank)})
    with ExportWriter(path, session=capture) as export:
        process = export.process(5_000 + rank)
        main = export.thread(process, 5_000 + rank, "main")
        for number in range(500):
            at = number * (1_000 + 13 * rank) + 7 * rank
            export.api(main, at, at + 10, "cudaLaunchKernel_v7000", number + 1)
            name = "rare()" if number in (3, 490) else "saxpy(float *)"
            export.kernel(process, 0, 7, at + 20, at + 900, name=name, correlation_id=number + 1)
    return path


def export(path: Path, offset: int, starts: list[int]) -> Path:
    """Write launches of a kernel at ``starts``; every third has no recorded call."""
    with ExportWriter(path, session=Capture(utc_epoch_ns=START + offset)) as out:
        process = out.process(4711)
        thread = out.thread(process, 4711, "main")
        for number, start in enumerate(starts, 1):
            if number % 3:
                out.api(thread, start - 40, start - 20, "cudaLaunchKernel_v7000", correlation_id=number)
            out.kernel(process, 0, 7, start, start + 5 + number % 4, name="saxpy(float *)", correlation_id=number)
    return path


@pytest.fixture(scope="module")
def indexed(tmp_path_factory) -> Iterator[Session]:
    """Yield two ranks on clocks 300 ns apart, with many kernels at the same time."""
    place, starts = tmp_path_factory.mktemp("ranks"), [100 + 10 * (number // 4) for number in range(60)]
    indexed = session_over(export(place / "a.sqlite", 0, starts), export(place / "b.sqlite", 300, starts[::2]))
    yield indexed
    indexed.close()


@pytest.fixture
def instances(indexed, monkeypatch) -> PagedAnswer:
    """Return the kernels of both ranks; an index of 20 bins, some of which begin with a row, finds their pages."""
    monkeypatch.setattr(time_index, "_BINS", 20)
    monkeypatch.setattr(paged, "_MANY", 1)
    return kernel_instances(indexed, Selection(), "saxpy(float *)", Names.FULL, ranked_tasks(indexed))


@pytest.mark.parametrize(
    ("key", "descending"),
    campaign.first(2, [("launch_delay", True), ("row", True), ("start", False), ("start", True), ("duration", True)]),
)
def test_pages_are_parts_of_the_whole(instances, monkeypatch, key, descending):
    monkeypatch.setattr(paged, "_BLOCK", 16)
    monkeypatch.setattr(paged, "_LOOKED_UP", 5)
    ordered = instances.sorted_by(key, descending)
    whole = [row for batch in ordered.stream(1000) for row in batch]
    assert len(whole) == len(ordered) == 90
    for limit, offsets in {1: (0, 29, 44, 89), 7: (0, 1, 31, 44, 60, 83, 89, 93), 200: (0, 30)}.items():
        for offset in offsets:
            assert list(ordered.page(offset, limit)) == whole[offset : offset + limit], (offset, limit)


def test_a_page_reads_a_part_of_the_time_unless_there_are_rows_without_a_start(instances):
    index = TimeIndex.of_table(instances.session, tables.kernels, instances.query)
    assert index.rows == 90
    first, last = index.bins_of(40, 45)
    assert 0 < first < last < index.bins
    assert index.before[first] <= 40 < 45 <= index.before[last]
    narrowed, offset = instances._narrowed(40, 5)
    assert offset == 40 - index.before[first]
    assert 5 <= len(instances.session.rows(narrowed)) < 40
    assert replace(instances, length=91)._narrowed(40, 5) == (instances.query, 40)


def test_the_launch_delay_of_a_page_is_that_of_the_whole(instances):
    delays = {(row[-3], row[-1]): row[2] for row in instances.sorted_by("launch_delay", False).page(0, 90)}
    assert {(row[-3], row[-1]): row[2] for row in instances.page(0, 90)} == delays
    assert set(delays.values()) == {40, None}


def test_pages_beside_one_that_took_a_look_at_all_rows_need_no_other_look(instances, monkeypatch):
    monkeypatch.setattr(paged, "_BLOCK", 40)
    asked: list[object] = []
    rows = Session.rows
    monkeypatch.setattr(Session, "rows", lambda indexed, query: asked.append(query) or rows(indexed, query))
    ordered = instances.sorted_by("registers", True)
    first = [ordered.page(offset, 10) for offset in (0, 10, 30)]
    once = len(asked)
    assert [ordered.page(offset, 10) for offset in (0, 10, 30)] == first
    assert len(asked) == once
    ordered.page(40, 10)
    assert len(asked) == 2 * once
