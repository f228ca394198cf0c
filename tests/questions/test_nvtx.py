"""NVTX: loading, projection, the tree by path, its pages, and the tables."""

import random
from collections import Counter

import numpy as np
import pytest
from filling import program
from synthetic import ExportWriter
from synthetic.demo import Thread
from synthetic.writing.writer import PUSH_POP, START_END

from nsystui.base.answer import record
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey
from nsystui.questions.nvtx.around import paths_around, range_around
from nsystui.questions.nvtx.chains import OPEN, UNKNOWN
from nsystui.questions.nvtx.chains import PUSH_POP as NESTS
from nsystui.questions.nvtx.listing import kernels_of, nvtx_tree_table
from nsystui.questions.nvtx.paths import NodeKind, TreeGrouping, template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.nvtx.tree import Node, NodeMaker, NvtxTree, Order
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.store.session import Session

PID = 4711
EVERYTHING = Selection()
Span = tuple[int, int]


class Export:
    """An export with one process and one thread, and short methods to fill it."""

    def __init__(self, writer: ExportWriter, pid: int = PID) -> None:
        self.writer = writer
        self.process = writer.process(pid)
        self.main = writer.thread(self.process, pid, "main")
        self.correlation = 0

    def range(self, start: int, end: int | None, text: str, thread: Thread | None = None, **rest: object) -> None:
        self.writer.nvtx_range(thread or self.main, start, end, text, **rest)

    def launch(self, call: Span, work: Span, thread: Thread | None = None, device: int = 0) -> None:
        self.correlation += 1
        self.writer.api(thread or self.main, *call, "cudaLaunchKernel_v7000", self.correlation)
        self.writer.kernel(self.process, device, 7, *work, name="saxpy(float *)", correlation_id=self.correlation)

    def thread(self, number: int) -> Thread:
        return self.writer.thread(self.process, PID + number, "")


def load(session: Session, selection: Selection = EVERYTHING) -> NvtxRanges:
    return NvtxRanges.load(session, selection, ranked_tasks(session))


def tree_of(session: Session, **options: object) -> NvtxTree:
    return NvtxTree.build(load(session), **options)


def labels(nodes: list[Node]) -> list[str]:
    return [node.label for node in nodes]


def names_of(ranges: NvtxRanges) -> list[str]:
    return [ranges.names[number] for number in ranges.values("name")]


def training(export: Export) -> None:
    """Write three steps of 100 ns, each with a range forward, which launches, and a range data, which does not."""
    for step in range(3):
        at = step * 100
        export.range(at, at + 90, f"step {step}")
        export.range(at + 10, at + 20, "data")
        export.range(at + 30, at + 60, "forward")
        export.launch((at + 35, at + 40), (at + 50, at + 150))
        export.launch((at + 50, at + 55), (at + 160, at + 170 + step))


def test_a_range_that_never_ended_has_no_duration_and_contains_nothing(session_of):
    unended = program(
        (10, None, "unended"), (20, 30, "after"), (100, 200, "around"), (110, None, "unended"), (120, 130, "inside"),
        launches=[((40, 45), (50, 900)), ((122, 125), (910, 920))],
    )  # fmt: skip
    ranges = load(session_of(unended))
    assert (ranges.values("flags") & OPEN > 0).tolist() == [True, False, False, True, False]
    assert ranges.values("end").tolist() == [10, 30, 200, 110, 130]
    assert ranges.values("parent").tolist() == [-1, -1, -1, 2, 2]
    nodes = {node.name: node for node in NvtxTree.build(ranges).roots()}
    assert [(node.open_count, node.ended, node.total, node.gpu_ops) for node in nodes.values()] == [
        (0, 1, 100, 1), (0, 1, 10, 0), (1, 0, 0, None),
    ]  # fmt: skip
    assert paths_around(ranges, [(0, ranges.lanes[0].thread, time) for time in (15, 123)]) == [None, "around › inside"]


FOLDED = {
    "aten::copy_, op_id = 998952": "aten::copy_", "aten::mul, seq = 45328, op_id = 990726": "aten::mul",
    "aten::mm, op_id = 3, seq = 4": "aten::mm",
    "aten::addmm, sizes = [[64], [32, 128], [128, 64], [], []]": "aten::addmm",
    "MmBackward0, seq = 12, sizes = [[2, 3]], input_op_ids = [(1,0)]": "MmBackward0",
    "nccl:all_to_all, op_id = 991144": "nccl:all_to_all", "a, sizes = [[1]]\nb": "a", "plain, seq=1": "plain, seq=1",
    "copy, sequence = 3": "copy, sequence = 3", "size, sizes of things": "size, sizes of things", "step 7": "step 7",
    ", op_id = 1": "[no name]", "": "[no name]",
}  # fmt: skip
"""Names, and their parts that do not change from call to call."""


def test_names_have_their_domain_and_lose_the_suffix_of_pytorch(session_of):
    def fill(export: Export) -> None:
        export.writer.nvtx_domain(export.main, 0, 1, "NCCL")
        export.range(10, 20, "ncclAllReduce", domain_id=1, registered=True)
        for number, name in enumerate(["twice, op_id = 7", "twice, seq = 8, sizes = [[2]]", *FOLDED]):
            export.range(30 + 2 * number, 31 + 2 * number, name)

    ranges = load(session_of(fill))
    assert names_of(ranges) == ["NCCL:ncclAllReduce", "twice", "twice", *FOLDED.values()]
    tree = NvtxTree.build(ranges)
    twice = next(node for node in tree.roots() if node.name == "twice")
    assert twice.count == 2
    assert sorted(labels(tree.children(twice))) == ["twice, op_id = 7", "twice, seq = 8, sizes = [[2]]"]


def test_a_module_is_one_row_over_shapes_and_with_all_numbers_folded_over_layers(session_of):
    names = (
        "{'Module': 'layers.0.mlp', 'Inputs': [[1, 64]]}",
        "{'Module': 'layers.0.mlp', 'TrainableParams': {'w': [8]}, 'Inputs': [[7, 64]]}",
        "layers.1.mlp in=[[1, 64]]",
        """{'Module': "layers.0's.mlp", 'Inputs': [[1, 64]]}""",
        "{'Inputs': [[7, 64]], 'Module': 'cut.sho",
        "Thunk:#hlo_op=fusion.1,unique_hlo_op_id=42#",
        "{'mod': 'torch', 'op': 'add', 'args': [{'shape': (6,)}]}",
        *(f"h.{layer}.w{weight}" for layer in (0, 1) for weight in (1, 2, 3)),
    )

    def fill(export: Export) -> None:
        for call, name in enumerate(names):
            export.range(call * 100 + 10, call * 100 + 50, name)

    ranges = load(session_of(fill))
    apart, together = (NvtxTree.build(ranges, fold=fold).roots() for fold in ("steps", "all"))
    operators = {"layers.0's.mlp": 1, "cut.sho": 1, "Thunk:#hlo_op=fusion.1": 1, "torch.add": 1}
    weights = {f"h.{layer}.w{weight}": 1 for layer in (0, 1) for weight in (1, 2, 3)}
    assert {node.label: node.count for node in apart} == {"layers.0.mlp": 2, "layers.1.mlp": 1, **operators, **weights}
    weights = {f"h.*.w{weight} (2)": 2 for weight in (1, 2, 3)}
    assert {node.label: node.count for node in together} == {"layers.*.mlp (2)": 3, **operators, **weights}


@pytest.mark.campaign
def test_a_range_that_ends_on_another_thread_stands_alone(session_of):
    def fill(export: Export) -> None:
        export.range(0, 100, "across", style=START_END, end_thread=export.thread(1), range_id=1)
        export.range(10, 90, "here")
        export.launch((20, 30), (40, 50))

    ranges = load(session_of(fill))
    assert ranges.values("parent").tolist() == [-1, -1]
    assert [node.self_total for node in NvtxTree.build(ranges).roots(Order.TIME)] == [None, 80]
    assert ranges.values("op_count").tolist() == [UNKNOWN, 1]
    assert (ranges.values("flags") & NESTS > 0).tolist() == [False, True]
    assert len(kernels_of(ranges, 0)) == 0


@pytest.mark.campaign
def test_start_end_ranges_stand_beside_the_tree(session_of):
    """A step whose loader is a start/end range that reaches into the forward pass, and begins before the step."""

    def fill(export: Export) -> None:
        export.range(10, 60, "prefetch", style=START_END, range_id=1)
        export.range(15, 90, "prefetch", style=START_END, range_id=2)
        program((0, 100, "step"), (20, 80, "forward"), (30, 40, "layer"), launches=[((32, 35), (50, 70))])(export)

    tree = tree_of(session_of(fill))
    # The last figure is the time of work launched while they ran.
    keys = ("path", "level", "count", "total", "self", "gpu_total")
    assert [tuple(row[key] for key in keys) for row in nvtx_tree_table(tree).records()] == [
        ("prefetch", 0, 2, 125, None, 40),
        ("step", 0, 1, 100, 40, 20),
        ("step › forward", 1, 1, 60, 50, 20),
        ("step › forward › layer", 2, 1, 10, 10, 20),
    ]
    prefetch, _ = tree.roots()
    assert [node.self_total for node in tree.children(prefetch)] == [None, None]
    assert [node.name for node in tree.roots(Order.SELF)] == ["step", "prefetch"]  # unknown is last


def test_no_self_time_is_below_zero_whatever_ranges_of_both_styles_do(session_of):
    """Each thread is an example, with self times computed moment by moment."""
    dice, drawn = random.Random(16), []

    def fill(export: Export) -> None:
        for number in range(60):
            thread = export.thread(1 + number)
            for place in range(dice.randrange(1, 9)):
                start, style, name = dice.randrange(1, 12), dice.choice([PUSH_POP, START_END]), f"{number}.{place}"
                drawn.append((number, start, start + dice.randrange(12), style, name))
                export.range(*drawn[-1][1:3], name, thread, style=style)

    def naive_self(ranges: list[tuple[int, int, str]], place: int) -> int:
        """Return the time of a range without ranges whose tightest container it is."""
        parents = []
        for number, (start, end, _) in enumerate(ranges):
            around = [
                (high - low, -low, -other)
                for other, (low, high, _) in enumerate(ranges)
                if low <= start and end <= high and ((low, high) != (start, end) or other < number)
            ]
            parents.append(-min(around)[2] if around else -1)
        children = [ranges[child] for child, parent in enumerate(parents) if parent == place]
        return sum(not any(low <= moment < high for low, high, _ in children) for moment in range(*ranges[place][:2]))

    ranges = load(session_of(fill))
    found = dict(zip(names_of(ranges), ranges.values("self_time").tolist(), strict=True))
    assert min(found.values()) >= 0
    for number in range(60):
        pushed = [(start, end, name) for lane, start, end, style, name in drawn if lane == number and style == PUSH_POP]
        expected = {name: naive_self(pushed, place) for place, (_, _, name) in enumerate(pushed)}
        assert {name: found[name] for name in expected} == expected
    tree = NvtxTree.build(ranges, fold="none")
    nodes = [tree.node(number) for number in range(tree.maker.paths.groups, len(tree))]
    styles = {name: style for *_, style, name in drawn}
    assert all((node.self_total is None) == (styles[node.name] == START_END) for node in nodes)


def test_without_cuda_the_gpu_columns_are_unknown_not_zero_and_a_moment_selects_itself(session_of):
    session = session_of(lambda export: export.range(50, 50, "moment"))
    (node,) = tree_of(session).roots()
    assert (node.gpu_total, node.gpu_median, node.gpu_ops, node.window) == (None, None, None, Window(50, 50))
    assert len(load(session, Selection(window=node.selection_window))) == 1
    assert load(session).notes == (
        f"no GPU work to project in {session.reports[0].name}: record with `nsys profile -t cuda`",
    )


@pytest.mark.campaign
def test_a_whole_cuda_graph_is_projected(session_of):
    def fill(export: Export) -> None:
        export.range(0, 100, "replay")
        export.writer.api(export.main, 10, 20, "cudaGraphLaunch_v10000", 5)
        export.writer.graph_launch(export.process, 0, 7, 30, 230, graph_id=1, graph_exec_id=2, correlation_id=5)

    ranges = load(session_of(fill))
    assert (ranges.values("op_count").tolist(), ranges.values("op_time").tolist()) == ([1], [200])
    ((start, duration, kind, *_),) = kernels_of(ranges, 0).page(0, 10)
    assert (start, duration, kind) == (30, 200, "graph")


@pytest.mark.campaign
def test_correlation_ids_of_another_process_are_not_mixed_up(session_of):
    def fill(export: Export) -> None:
        program((0, 100, "here"), launches=[((10, 20), (30, 40))])(export)
        program((0, 100, "there"), launches=[((10, 20), (1_000, 1_500))])(Export(export.writer, PID + 50))

    ranges = load(session_of(fill))
    assert ranges.values("op_time").tolist() == [10, 500]
    assert [kernels_of(ranges, index).page(0, 5)[0][0] for index in range(2)] == [30, 1_000]


@pytest.mark.campaign
def test_reports_share_thread_ids_but_neither_ranges_nor_clocks(session_of):
    early = program((0, 5_000_000, "outer"), launches=[((10, 20), (30, 40))])
    ranges = load(session_of(early, program((0, 1_000, "inner"), launches=[((10, 20), (30, 70))])))
    assert ranges.values("parent").tolist() == [-1, -1]
    assert (ranges.values("start").tolist(), ranges.values("gpu_start").tolist()) == ([0, 1_000_000], [30, 1_000_030])
    assert [lane.rank for lane in ranges.lanes] == [0, 1]
    assert kernels_of(ranges, 1).page(0, 5)[0][:2] == (1_000_030, 40)


def test_an_event_without_a_range_on_its_thread_names_the_range_of_the_main_thread(session_of):
    def two_threads(export: Export) -> None:
        export.range(0, 90, "step 0")
        export.writer.api(export.thread(2), 10, 20, "cudaLaunchKernel", 1)

    session = session_of(two_threads)
    around = range_around(session, EventKey(0, EventKind.API, 1, 10), ranked_tasks(session))
    assert around.key is None
    assert around.reason == f"no NVTX range is open on this thread ({PID + 2}); step 0 is open on the main thread"


def test_the_window_keeps_what_overlaps_whole_and_what_is_around_it(session_of):
    ranges = load(session_of(training), Selection(window=Window(110, 120)))
    assert (names_of(ranges), ranges.values("parent").tolist()) == (["step 1", "data"], [-1, 0])
    assert ranges.values("self_time").tolist() == [50, 10]  # forward counts
    assert ranges.values("op_count").tolist() == [2, 0]


@pytest.mark.campaign
@pytest.mark.parametrize(("selection", "expected"), [
    (Selection().with_name("want"), ["outer", "wanted", "inner"]),
    (Selection(window=Window(100, 200)), ["outer", "moment"]),
    (Selection(window=Window(30, 60)), ["outer", "wanted"]),  # a range that ends or begins at an edge is outside
])  # fmt: skip
def test_a_filter_keeps_what_is_around_its_ranges_and_that_on_names_what_is_inside(session_of, selection, expected):
    inside = ((10, 50, "wanted"), (20, 30, "inner"), (60, 70, "sibling"), (100, 100, "moment"))
    assert names_of(load(session_of(program((0, 100, "outer"), *inside)), selection)) == expected


@pytest.mark.campaign
def test_tasks_and_devices_say_which_ranges_and_operations_there_are(session_of):
    def fill(export: Export) -> None:
        export.range(0, 100, "both")
        export.launch((10, 20), (30, 40), device=0)
        export.launch((30, 40), (50, 90), device=1)

    session = session_of(fill, training)
    first, second = (ranked_tasks(session)[number].task for number in (0, 1))
    both = load(session, Selection(tasks=frozenset({first})))
    ranges = load(session, Selection(tasks=frozenset({first}), devices=frozenset({1})))
    assert (ranges.values("op_count").tolist(), ranges.values("op_time").tolist()) == ([1], [40])
    assert (len(kernels_of(ranges, 0)), len(kernels_of(both, 0))) == (1, 2)
    assert len(load(session, Selection(tasks=frozenset({second})))) == 9
    assert len(load(session, Selection(tasks=frozenset({Task(0, 1)})))) == 0


def test_numbered_names_fold_if_asked_and_a_single_thread_has_no_level_of_its_own(session_of):
    tree = tree_of(session_of(training))
    (step,) = tree.roots()
    assert (step.label, step.name, step.variants, step.count) == ("step * (3)", "step *", 3, 3)
    assert (step.total, step.average, step.self_total) == (270, 90.0, 150)
    assert (step.gpu_total, step.gpu_median, step.gpu_ops) == (120 + 121 + 122, 121.0, 6)
    assert (step.rank, step.thread, step.index) == (0, load(tree.ranges.session).lanes[0].thread, None)
    assert (step.window, step.gpu_window) == (Window(0, 290), Window(50, 372))
    assert step.selection_window == Window(0, 372)
    forward, data, singles = tree.children(step)
    assert (forward.label, forward.count, forward.gpu_ops) == ("forward", 3, 6)
    assert (data.gpu_total, data.gpu_median, data.gpu_ops, data.gpu_window) == (None, None, 0, None)
    assert (singles.kind, singles.label, singles.child_count) == (NodeKind.RANGES, "3 single ranges", 3)
    single = tree.children(singles, order="time")[1]
    assert (single.label, single.kind, single.window) == ("step 1", NodeKind.RANGE, Window(100, 190))
    assert (single.gpu_total, single.gpu_ops, single.self_total, single.child_count) == (121, 2, 50, 0)
    assert tree.children(single) == []
    tree = tree_of(tree.ranges.session, fold="none")
    assert labels(tree.roots(Order.NAME)) == ["step 0", "step 1", "step 2"]
    assert tree.roots()[0].index is not None  # one range: the path is the range


def test_steps_fold_and_layers_that_recur_in_each_stay_apart(session_of):
    """Four steps with three layers each, a copy that has the step's number, and layers on a thread of their own."""

    def fill(export: Export) -> None:
        own = export.thread(1)
        for step in range(4):
            at = 100 * step
            export.range(at, at + 90, f"step {step}")
            export.range(at + 1, at + 5, f"copy in {step}")
            for layer in range(3):
                export.range(at + 10 * (layer + 1), at + 10 * (layer + 2) - 1, f"layer_{layer}")
                export.range(at + 10 * layer, at + 10 * layer + 5, f"layer_{layer} backward", own)

    session = session_of(fill)
    for fold, inside, backward in (
        ("steps", ["copy in * (4)", "layer_0", "layer_1", "layer_2"], "layer_0 backward"),
        ("all", ["copy in * (4)", "layer_* (3)"], "layer_* backward (3)"),
    ):
        tree = tree_of(session, by="all", fold=fold)
        (step,) = [node for node in tree.roots() if node.name == "step *"]
        assert sorted(labels(tree.children(step)))[1:] == inside
        assert backward in labels(tree.roots())


def test_names_fold_with_two_siblings_or_more_that_differ_in_a_number(session_of):
    """Each thread is an example: its name, ranges and their children."""

    def fill(export: Export) -> None:
        variants, siblings, across = (export.thread(number) for number in (1, 2, 3))
        for number, name in enumerate(["fp16", "fp32", "fp16", "fp32", "op 1", "op 2", "op 3"]):
            export.range(number * 10, number * 10 + 5, name, variants)
        for number, parent in enumerate("aab"):
            export.range(number * 10, number * 10 + 9, parent, siblings)
            export.range(number * 10 + 1, number * 10 + 2, f"part {number}", siblings)
            export.range(number * 10, number * 10 + 9, f"step {number}", across)
            export.range(number * 10 + 1, number * 10 + 2, f"copy in {number}", across)

    tree = tree_of(session_of(fill))
    found = {
        int(thread.label.split()[1]) - PID: {node.label: labels(tree.children(node)) for node in tree.children(thread)}
        for thread in tree.roots()
    }
    assert sorted(found[1]) == ["fp16", "fp32", "op * (3)"], "two variants are two things"
    assert found[2] == {"a": ["part 0", "part 1", "2 single ranges"], "b": ["part 2"]}, "among siblings only"
    assert found[3] == {"step * (3)": ["copy in * (3)", "3 single ranges"]}, "children fold across folded names"


def test_template():
    names = {"layer_12": "layer_*", "Run #0 of 31": "Run #* of *", "buffer 0x7f3aC": "buffer *", "none": "none"}
    assert {name: template(name) for name in names} == names


def chain(export: Export, levels: int) -> None:
    """Write nested ranges; the work of the innermost range takes as many ns as there are levels."""
    for level in range(levels):
        export.range(level, 2 * levels + 10 - level, "down" if level % 2 else "and")
    export.launch((levels, levels + 1), (5 * levels, 6 * levels))


@pytest.mark.campaign
def test_more_levels_than_python_recurses(session_of):
    levels = 1_500
    tree = tree_of(session_of(lambda export: chain(export, levels)))
    assert len(tree) == levels
    node = tree.roots()[0]
    for _ in range(levels - 1):
        (node,) = tree.children(node)
    assert (node.depth, node.gpu_total, node.child_count) == (levels - 1, levels, 0)
    assert len(tree.ancestors(node)) == levels - 1
    assert sum(1 for _ in tree.search(NameFilter("down"))) == levels // 2
    assert len(nvtx_tree_table(tree, depth=50)) == 50


@pytest.mark.campaign
def test_a_chain_of_ranges_is_work_by_its_length(session_of, monkeypatch):
    """Lookups of parents and of names grow with the number of levels."""
    calls: list[str] = []
    above, named = NvtxTree._id_above, NodeMaker.name
    trees = [tree_of(session_of(lambda export, levels=levels: chain(export, levels))) for levels in (100, 400)]
    monkeypatch.setattr(NvtxTree, "_id_above", lambda *words: calls.append("above") or above(*words))
    monkeypatch.setattr(NodeMaker, "name", lambda *words: calls.append("name") or named(*words))
    for what, do in {
        "search": lambda tree: tree.rows_around({0: 7}, list(tree.search(NameFilter("and")))),
        "find again": lambda tree: tree.find_all(tree, range(len(tree))),
    }.items():
        looks = []
        for tree in trees:
            calls.clear()
            do(tree)
            looks.append(len(calls))
        assert 0 < looks[1] <= 4 * looks[0] + 10, what


def test_a_match_stands_where_what_is_around_it_is_shown(session_of):
    tree = tree_of(session_of(lambda export: chain(export, 6)))
    matches = list(tree.search(NameFilter("down")))
    assert [tree.node(number).depth for number in matches] == [1, 3, 5]
    shown = {number: row for row, number in enumerate(tree.ancestors(tree.node(matches[1])))}
    assert (tree.rows_around(shown, matches), tree.rows_around({}, matches)) == ([1, 2, 2], [0, 0, 0])


def ranks(export: Export) -> None:
    """Write two threads; the second takes twice the time."""
    worker = export.writer.thread(export.process, PID + 1, "worker")
    export.range(0, 10, "work")
    export.range(0, 20, "work", thread=worker)
    export.launch((1, 2), (30, 40))
    export.launch((3, 4), (50, 70), thread=worker)


@pytest.mark.campaign
def test_a_process_that_is_no_task_is_named_by_its_pid(session_of):
    def fill(export: Export) -> None:
        training(export)
        export.range(0, 50, "read", thread=export.writer.thread(export.writer.process(99), 99, "loader"))

    roots = tree_of(session_of(fill)).roots()
    assert [(node.rank, node.label.partition(" of ")[0]) for node in roots] == [(0, "rank 0"), (None, "process 99")]


@pytest.mark.campaign
def test_single_ranges_come_in_pages_and_orders(session_of):
    lengths = list(range(1, 1201))
    random.Random(1).shuffle(lengths)
    spans = [(number * 2_000, number * 2_000 + length, "work") for number, length in enumerate(lengths)]
    tree = tree_of(session_of(program(*spans)))
    (work,) = tree.roots()
    assert work.child_count == 1200
    pages = [tree.children(work, offset) for offset in (0, 500, 1000, 1500)]
    assert [len(page) for page in pages] == [500, 500, 200, 0]
    assert [node.total for page in pages for node in page] == list(range(1200, 0, -1))
    by_time = tree.children(work, 10, 5, "time")
    assert [node.total for node in by_time] == lengths[10:15]
    assert [tree.node(node.id) for node in by_time] == by_time
    assert tree.node(tree.ancestors(by_time[0])[-1]) == work


def test_ids_are_stable_and_lead_back(session_of):
    tree = tree_of(session_of(training))
    (step,) = tree.roots()
    singles = tree.children(step)[-1]
    single = tree.children(singles)[0]
    assert tree.node(singles.id) == singles
    assert (tree.ancestors(single), tree.path(single)) == ((step.id, singles.id), ("step *", single.name))
    with pytest.raises(IndexError):
        tree.node(10_000)


@pytest.mark.campaign
def test_nodes_are_found_again_by_their_names(session_of):
    session = session_of(ranks, training)
    before, after = tree_of(session), tree_of(session, fold="none")
    found = after.find_all(before, range(len(before)))
    paths = {before.path(before.node(number)) for number in range(len(before))}
    assert found == {number for number in range(len(after)) if after.path(after.node(number)) in paths}
    assert 0 < len(found) < len(after)


@pytest.mark.campaign
def test_single_ranges_and_the_rows_that_open_them_are_found_again(session_of):
    before, again = (tree_of(session_of(ranks, training)) for _ in range(2))
    pending, kinds = list(before.roots()), set()
    while pending:
        node = pending.pop()
        kinds.add(node.kind)
        assert again.find_all(before, (node.id,)) == {node.id}
        pending += before.children(node, limit=1_000)
    assert {NodeKind.RANGES, NodeKind.RANGE, NodeKind.PATH} <= kinds


@pytest.mark.campaign
def test_the_tree_is_what_walking_up_from_every_range_gives(session_of):
    """Each thread is an example."""

    def fill(export: Export) -> None:
        for seed in range(5):
            chance, thread = random.Random(seed), export.thread(1 + seed)

            def descend(start: int, end: int, depth: int, chance=chance, thread=thread) -> None:
                while end - start > 4 and depth < 7:
                    stop = chance.randrange(start + 2, end)
                    export.range(start, stop, chance.choice("abc"), thread)
                    descend(start + 1, stop - 1, depth + 1, chance, thread)
                    start = stop + 1

            descend(0, 3_000, 0)

    tree = tree_of(session_of(fill), by=TreeGrouping.ALL)
    naive: Counter[tuple[str, ...]] = Counter()
    for above in range(len(tree.ranges)):
        names: tuple[str, ...] = ()
        while above >= 0:
            names = (tree.ranges.names[tree.ranges.values("name")[above]], *names)
            above = int(tree.ranges.values("parent")[above])
        naive[names] += 1
    assert {tree.path(node): node.count for node in [tree.node(number) for number in range(len(tree))]} == naive
    waiting, reached = tree.roots(), 0
    while waiting:
        node = waiting.pop()
        reached += node.kind is NodeKind.PATH
        waiting += [child for child in tree.children(node) if child.kind is NodeKind.PATH]
    assert reached == len(tree)


def test_the_gpu_work_of_a_range_says_what_launched_it(session_of):
    ranges = load(session_of(training))
    work = kernels_of(ranges, 3, ranked_tasks(ranges.session))
    assert len(work) == 2
    keys = ("start", "duration", "name", "kind", "call", "rank", "device", "stream")
    same = ("saxpy(float *)", "kernel", "cudaLaunchKernel", 0, 0, 7)
    rows = [record(work.columns, row) for row in work.page(0, 10)]
    assert [tuple(row[key] for key in keys) for row in rows] == [(150, 100, *same), (260, 11, *same)]
    assert work.sorted_by("duration", False).page(0, 1)[0][1] == 11
    assert len(kernels_of(ranges, 1)) == 0


def test_sums_beyond_double_precision_stay_exact(session_of):
    big = 2**53 + 1

    def fill(export: Export) -> None:
        for _ in range(3):
            export.range(0, big, "long", style=START_END, range_id=1)

    tree = tree_of(session_of(fill))
    assert int(np.sum([tree.node(number).total for number in range(len(tree))], dtype=np.int64)) == 3 * big
