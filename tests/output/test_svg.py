"""Drawings as SVG."""

import math
import re
from xml.etree import ElementTree

import pytest

from nsystui.base.answer import Unit
from nsystui.base.drawing import COLOURS, Bar, Bars, Curves, DrawnLane, DrawnLanes, LaneName, Part, Series
from nsystui.output.svg import style, svg

NASTY = '<script>alert("1")</script> & \x1b[31m \u202e \udcff\ufffe'
PARTS = (Part("compute", "compute"), Part("idle", "idle", 0.5))


def bars(*values: tuple[float, float], label: str = "rank 0") -> Bars:
    return Bars("budget", PARTS, tuple(Bar(label, value, "busy") for value in values), Unit.PERCENT, 100.0)


def lanes(*values: float, label: str = "rank 0", names: tuple[LaneName, ...] = ()) -> DrawnLanes:
    return DrawnLanes("use", 0, 10**9, PARTS[:1], (DrawnLane(label, (values,), "50 %", names),))


def curves(*points: tuple[float, float], name: str = "AllReduce") -> Curves:
    return Curves("bandwidth", Unit.BYTES, Unit.RATE, (Series(name, "nccl", points),), ("NVLink", 4.5e11))


EVERY = {
    "bars": bars((60.0, 40.0)), "no bars": bars(), "bars of nothing": bars((0.0, 0.0)),
    "lanes": lanes(0.0, 0.5, math.nan, 1.0), "no lanes": DrawnLanes("use", 0, 0, (), ()),
    "curves": curves((1024.0, 1e9), (2048.0, 2e9)), "one point": curves((1024.0, 1e9)), "no points": curves(),
    "a curve of zeros": Curves("b", Unit.BYTES, Unit.RATE, (Series("a", "nccl", ((4.0, 0.0),)),)),
    "nasty bars": bars((50.0, 50.0), label=NASTY),
    "nasty lanes": lanes(1.0, 1.0, label=NASTY, names=(LaneName(0, 1, NASTY),)),
    "nasty curves": curves((8.0, 1.0), name=NASTY),
}  # fmt: skip


def drawn(drawing: Bars | DrawnLanes | Curves) -> ElementTree.Element:
    text = svg(drawing)
    text.encode()  # no lone surrogate
    return ElementTree.fromstring(text)


def shapes(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return list(root.iter(f"{{http://www.w3.org/2000/svg}}{kind}"))


def paths(root: ElementTree.Element, kind: str) -> list[str]:
    return [one.get("d") or "" for one in shapes(root, "path") if kind in (one.get("class") or "")]


@pytest.mark.parametrize("name", EVERY)
def test_every_drawing_is_well_formed_and_has_no_script_and_no_link(name):
    root = drawn(EVERY[name])
    assert {element.tag.partition("}")[2] for element in root.iter()} <= {
        *("svg", "title", "style", "rect", "text", "path", "g")
    }
    assert not [key for element in root.iter() for key in element.attrib if "href" in key or key.startswith("on")]
    assert "\x1b" not in svg(EVERY[name])
    numbers = re.findall(r' (?:width|height|x|y)="([^"]*)"', svg(EVERY[name]))
    assert all(math.isfinite(float(number)) for number in numbers)


def test_a_drawing_for_a_page_is_the_same_without_style_and_title():
    for alone in (True, False):
        text = svg(EVERY["bars"], alone=alone)
        assert ("<style>" in text) == ("budget</text>" in text) == alone
        assert 'aria-label="budget"' in text


def test_bars_are_as_long_as_their_values():
    found = [one for one in shapes(drawn(bars((75.0, 25.0))), "rect") if one.get("height") == "26"]
    lengths = [float(one.get("width") or 0) for one in found]
    assert lengths[0] == pytest.approx(3 * lengths[1], rel=0.01)
    assert [one.get("class") for one in found] == ["compute", "idle"]
    assert float(found[1].get("x") or 0) == pytest.approx(float(found[0].get("x") or 0) + lengths[0], abs=0.2)


def test_each_square_of_a_legend_has_a_frame_so_that_pale_parts_are_seen():
    drawn = svg(Bars("idle", (Part("tail", "idle", 0.25), Part("not recorded", "idle", 0.1)), (), Unit.PERCENT, 100.0))
    assert drawn.count('class="frame" fill="none"') == 2


def test_a_lane_is_as_high_as_its_columns_and_says_where_nothing_was_recorded():
    root = drawn(lanes(0.0, 0.5, 1.0, math.nan))
    (path,) = paths(root, "compute")
    ground, half = (float(number) for number in re.match(r"M[\d.]+ ([\d.]+)V([\d.]+)H", path).groups())
    full = float(re.findall(r"V([\d.]+)H", path)[1])
    assert ground - full == pytest.approx(2 * (ground - half))
    assert len(paths(root, "unseen")) == 1
    assert paths(drawn(lanes(0.0, 0.0001)), "compute")  # a little work is visible


def test_labels_and_names_are_cut_to_their_room():
    named = (LaneName(0, 0, "a name of forty characters in one column"), LaneName(1, 9, "gemm"))
    words = [one.text or "" for one in shapes(drawn(lanes(*[1.0] * 10, label=40 * "rank 0 ", names=named)), "text")]
    label, name = (next(text for text in words if text.startswith(start)) for start in ("rank", "a na"))
    assert "gemm" in words and label.endswith("…") and 20 < len(label) < 60
    assert name.endswith("…") and 6 < len(name) < 20


def test_parts_on_top_of_each_other_cover_no_more_than_their_own():
    root = drawn(DrawnLanes("use", 0, 100, PARTS, (DrawnLane("rank 0", ((0.25,), (0.5,))),)))
    compute, idle = (float(re.findall(r"V([\d.]+)H", paths(root, name)[0])[0]) for name in ("compute", "idle"))
    ground = float(re.match(r"M[\d.]+ ([\d.]+)", paths(root, "compute")[0]).group(1))
    assert (ground - idle) == pytest.approx(3 * (ground - compute), abs=1)


def test_a_curve_is_drawn_from_its_smallest_size_to_its_largest():
    root = drawn(curves((1024.0, 1e9), (4096.0, 2e9), (16384.0, 4e9)))
    (path,) = paths(root, "curve")
    points = [tuple(map(float, point)) for point in re.findall(r"([\d.]+) ([\d.]+)", path)]
    assert points[1][0] - points[0][0] == pytest.approx(points[2][0] - points[1][0], abs=0.3)  # a logarithm
    assert points[0][1] > points[1][1] > points[2][1]
    assert "AllReduce, 4 KiB: 2 GB/s" in [one.text for one in shapes(root, "title")]


def test_time_is_told_in_round_steps_with_as_many_decimals_as_they_need():
    found = DrawnLanes("use", 6_412_018_000, 6_412_019_000, PARTS[:1], (DrawnLane("rank 0", ((1.0,),)),))
    assert "6.4120182 s" in [one.text or "" for one in shapes(drawn(found), "text")]


def test_five_hundred_lanes_are_a_small_file():
    values = tuple((number % 7) / 7 for number in range(95))
    many = DrawnLanes(
        "use", 0, 10**9, PARTS[:1], tuple(DrawnLane(f"rank {number}", (values,)) for number in range(512)), more=3
    )
    text = svg(many)
    assert len(text) < 1_500_000
    assert "3 more are not drawn" in text


def test_the_colours_are_those_of_the_screens_and_paper_is_light():
    light, dark = style().split("@media screen and (prefers-color-scheme:dark)")
    for name, colour in COLOURS.items():
        if isinstance(colour.light, str):
            assert f".drawing .{name}{{fill:{colour.light}" in light
            assert f".drawing .{name}{{fill:{colour.dark}" in dark
