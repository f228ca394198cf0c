"""How values are worded and durations are read."""

import contextlib
import math
import re
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.base.answer import FILES_ONLY, Column, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Window, parse_numbers, parse_window
from nsystui.base.units import (
    Wording,
    align_decimal,
    format_value,
    parse_duration,
    round_half_up,
    wordings,
)

# 999,950 ns are not "1000 µs", and digits before the point are not rounded away.
WORDS = {
    Unit.DURATION: {
        2_453_000: "2.453 ms", 320_000: "320 µs", 41_300_000_000: "41.3 s", 12: "12 ns", 0: "0 ns", 0.5: "0.5 ns",
        -18_000: "-18 µs", 620_316.3: "620.3 µs", 999: "999 ns", 999_949: "999.9 µs", 999_950: "1 ms",
        999_999_999: "1 s", 1_234_567_000_000: "1,235 s", 45_296_000_000_000: "45,296 s",
    },
    Unit.TIME: {
        6_412_018_000: "6.412 018 000 s", 0: "0.000 000 000 s", -1_000: "-0.000 001 000 s",
        1_234_000_000_001: "1,234.000 000 001 s", 12.0: "0.000 000 012 s",
    },
    Unit.BYTES: {
        227 * 1024: "227 KiB", 1_572_864: "1.5 MiB", 1_023: "1,023 B", 1024**2 - 1: "1 MiB", 0: "0 B",
        50_331_648: "48 MiB", 21_744_461_113_200: "19.78 TiB",
    },
    Unit.RATE: {27 * 1024**3 / 2.637: "10.99 GB/s", 212e9: "212 GB/s", 999.96e6: "1 GB/s", 1_500: "1.5 kB/s"},
    Unit.FREQUENCY: {1_410_438_764: "1.41 GHz", 210_000_246.6: "210 MHz"},
    Unit.PERCENT: {14.63: "14.6 %", 100: "100.0 %"},
    Unit.COUNT: {9_600: "9,600", 12.5: "12.5"},
    Unit.NUMBER: {18452: "18452", 0.25: "0.25", 3.0: "3", "132·1·1": "132·1·1"},
    Unit.TEXT: {"nvjet": "nvjet", "a\x1b[31m": "a␛[31m", 5: "5"},
}  # fmt: skip


@pytest.mark.parametrize("unit", WORDS)
def test_a_value_is_worded_in_its_unit(unit):
    assert {value: format_value(unit, value) for value in WORDS[unit]} == WORDS[unit]


@given(st.integers(-(10**12), 10**12))
def test_a_duration_reads_back_within_its_four_digits(ns):
    number, unit = format_value(Unit.DURATION, ns).split(" ")
    value = float(number.replace(",", "")) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert math.isclose(value, ns, rel_tol=5.1e-4)
    assert len(re.sub(r"[-.,]", "", number).lstrip("0")) <= 4


@given(st.integers(-(2**60), 2**60))
def test_neighbouring_points_in_time_differ_and_read_back(ns):
    assert format_value(Unit.TIME, ns) != format_value(Unit.TIME, ns + 1)
    assert parse_duration(format_value(Unit.TIME, abs(ns)).replace(",", "")) == abs(ns)


@pytest.mark.parametrize("unit", list(Unit))
def test_missing_is_a_dash_and_never_zero(unit):
    assert [format_value(unit, value) for value in (None, math.nan, math.inf, -math.inf)] == ["–"] * 4


def test_durations_are_read():
    # In binary floating point 1.1 s would be 1 100 000 000.0000001 ns.
    durations = {
        "1.5ms": 1_500_000, "250us": 250_000, "250µs": 250_000, "250μs": 250_000, "3s": 3 * 10**9, " 3 S ": 3 * 10**9,
        ".5us": 500, "0": 0, "0.0": 0, "1.1s": 1_100_000_000, "6.412 018 s": 6_412_018_000,
    }  # fmt: skip
    assert {text: parse_duration(text) for text in durations} == durations


@pytest.mark.parametrize(
    "text", ["", "ms", "1,5ms", "-3s", "1h", "1.2.3s", "nan", "1e3", "1 . 5", "99999999999s", "5\x1bs", "٣s"]
)
def test_what_is_no_duration_is_refused_in_one_clean_line(text):
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("text", "readings"), {
    "1200": "1200ns or 1200s", "0.5": "0.5ns or 0.5s", ".25": ".25ns or .25s", " 3 ": "3ns or 3s",
    "6.412 018": "6.412 018ns or 6.412 018s", "007": "007ns or 007s",
}.items())  # fmt: skip
def test_a_time_without_a_unit_is_refused_with_both_readings(text, readings):
    with pytest.raises(UsageError, match=f"has no unit: write {readings}$".replace(".", r"\.")):
        parse_duration(text)


@given(st.text(max_size=12))
def test_parse_duration_never_fails_otherwise(text):
    with contextlib.suppress(UsageError):
        assert parse_duration(text) >= 0


def test_columns_align_on_the_decimal_point_and_the_unit():
    aligned = ["  2.453 ms", "320     µs", " 41.3    s", "  –       ", " 12     ns"]
    assert align_decimal(["2.453 ms", "320 µs", "41.3 s", "–", "12 ns"]) == aligned
    assert align_decimal(["6.412 018 000 s", "12.000 000 001 s"]) == [" 6.412 018 000 s", "12.000 000 001 s"]
    assert align_decimal([]) == []


@given(st.lists(st.one_of(st.none(), st.integers(-(10**13), 10**13)), max_size=20), st.sampled_from(list(Unit)))
def test_aligned_cells_have_one_width_and_lose_nothing(values, unit):
    cells = [format_value(unit, value) for value in values]
    aligned = align_decimal(cells)
    assert len({len(cell) for cell in aligned}) <= 1
    assert [cell.replace(" ", "") for cell in aligned] == [cell.replace(" ", "") for cell in cells]
    assert len({cell.index(".") for cell in aligned if "." in cell}) <= 1


@given(st.one_of(st.floats(-1e12, 1e12), st.integers(-(10**9), 10**9).map(lambda n: n / 100)), st.integers(0, 5))
def test_halves_as_they_are_written_go_away_from_zero(value, decimals):
    step = Decimal(1).scaleb(-decimals)
    assert round_half_up(value, decimals) == float(Decimal(repr(value)).quantize(step, ROUND_HALF_UP))


@pytest.mark.parametrize(("unit", "values", "heading", "cells"), [
    (Unit.RATE, [4_900_700_000, 2_000_500], "total GB/s", ["4.901", "0.002"]),
    (Unit.FREQUENCY, [1_395_006_597.5, 210e6], "total MHz", ["1,395.0", "210.0"]),
    (Unit.DURATION, [2_646_183_000, 228_000], "total ms", ["2,646.2", "0.2"]),
    (Unit.DURATION, [41_269_000_000, 5, 0, None], "total", ["41.3 s", "5 ns", "0 ns", "–"]),
    (Unit.DURATION, [3_000, 950], "total ns", ["3,000", "950"]),
    (Unit.DURATION, [5_000_000_000], "total s", ["5"]),
    (Unit.DURATION, [], "total ns", []),
    (Unit.CHANGE, [-45_000_000, 12_500_000, 0], "total ms", ["-45.000", "+12.500", "0.000"]),
    (Unit.BYTES, [50_331_648, 1_048_576, None], "total MiB", ["48", "1", "–"]),
    (Unit.BYTES, [50_331_648, 100], "total", ["48 MiB", "100 B"]),
    (Unit.CHANGE, [-45_678_000, 123], "total", ["-45.7 ms", "+123 ns"]),
    (Unit.RATE, [59.25e9, 13.6e9], "total GB/s", ["59.250", "13.600"]),
    (Unit.PERCENT, [35.94, 0.0, float("nan")], "total %", ["35.9", "0.0", "–"]),
    (Unit.PERCENT, [0.0096, 3e-7, -0.01, -0.0], "total %", ["0.01", "0.000", "0.0", "0.0"]),
    (Unit.TIME, [97_450_823], "total s", ["0.097 450 823"]),
    (Unit.COUNT, [1_234, 7], "total", ["1,234", "7"]),
    (Unit.COUNT, [1_234, 7.25], "total", ["1,234.0", "7.2"]),
    (Unit.NUMBER, [1_234, 7], "total", ["1234", "7"]),
])  # fmt: skip
def test_a_column_has_one_unit_which_its_heading_names(unit, values, heading, cells):
    wording = Wording.of(unit, values)
    assert wording.heading("total") == heading
    assert [wording.cell(value) for value in values] == cells


def test_a_column_without_values_names_no_unit_and_a_heading_that_names_it_already_stays():
    assert [Wording.of(unit, [None, None]).heading("wait") for unit in (Unit.DURATION, Unit.BYTES)] == ["wait"] * 2
    assert Wording.of(Unit.PERCENT, [1.0]).heading("busy %") == "busy %"
    assert Wording.of(Unit.DURATION, [2_000_000]).heading("GPU/step") == "GPU ms/step"


def test_columns_that_are_compared_share_the_unit_of_their_largest_value_shown_or_not():
    duration = Column("duration", header="D", label="duration", unit=Unit.DURATION, importance=FILES_ONLY)
    part = Column("part", header="P", label="part", unit=Unit.DURATION, compared="duration")
    other = Column("other", header="O", label="other", unit=Unit.DURATION)
    found = wordings((duration, part, other), [(112_485_001, 3_061, 3_061)])
    assert [one.symbol for one in found] == ["ms", "ms", "ns"]
    assert [one.symbol for one in wordings((duration, part), [])] == [Wording.of(Unit.DURATION, ()).symbol] * 2


@given(st.lists(st.floats() | st.integers(-(2**62), 2**62) | st.none()))
def test_only_nothing_and_rounding_errors_are_worded_as_zero_and_without_a_sign(values):
    for unit in (Unit.DURATION, Unit.CHANGE, Unit.BYTES, Unit.RATE):
        wording = Wording.of(unit, values)
        for value in values:
            if value is not None and math.isfinite(value):
                number = wording.cell(value).partition(" ")[0]
                assert re.fullmatch(r"[+-]?[\d,]+(\.\d+)?", number)
                assert (not re.search("[1-9]", number)) == (abs(value) < 0.005)
                assert re.search("[1-9]", number) or number[0] not in "+-"


@pytest.mark.parametrize(
    ("value", "words"),
    [(4_700, "4.70 µs"), (999_600, "1.00 ms"), (120_000_000, "120 ms"), (36, "36 ns"), (0.2, "0.200 ns")],
)
def test_a_cell_with_its_own_unit_has_three_digits(value, words):
    assert Wording(Unit.DURATION).cell(value) == words
    assert Wording(Unit.CHANGE).cell(-value) == f"-{words}"


EXTENT = Window(-100, 5_000)


def test_numbers_and_spans():
    numbers = {
        "0": {0}, "0,4-7": {0, 4, 5, 6, 7}, " 3 , 1 - 2 ": {1, 2, 3}, "5-5": {5}, "1,1,0-1": {0, 1},
        "4294967295": {4294967295}, "007": {7},
    }  # fmt: skip
    assert {text: parse_numbers(text, "ranks") for text in numbers} == numbers


def test_what_is_no_number_is_said_in_one_line():
    wrong = ["", ",", "1,", "a", "-1", "1-", "1-2-3", "1.5", "²", "٣", "0x1", "7-4", "1 2", "0-99999999999", "\ud800"]
    for text in (*wrong, "9" * 30):
        with pytest.raises(UsageError, match="ranks") as error:
            parse_numbers(text, "ranks")
        assert len(str(error.value).splitlines()) == 1, text


@pytest.mark.campaign
@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=20))
def test_numbers_come_back(chosen):
    assert parse_numbers(",".join(map(str, chosen)), "streams") == chosen


def test_windows():
    # A window may begin beyond the extent. The last event is in the extent, because it may be a mark.
    windows = {
        "10ns:20ns": Window(10, 20), "1us:2us": Window(1_000, 2_000), " 1.5 us : 2 µs ": Window(1_500, 2_000),
        "0:0": Window(0, 0), ":20ns": Window(-100, 20), "20ns:": Window(20, 5_001), ":": Window(-100, 5_001),
        "1s:": Window(10**9, 10**9), "5s:": Window(5 * 10**9, 5 * 10**9),
        "6.412 018 233 s:6.412 018 234 s": Window(6_412_018_233, 6_412_018_234),
    }  # fmt: skip
    assert {text: parse_window(text, EXTENT) for text in windows} == windows


@pytest.mark.parametrize(
    "text", ["", "10", "10ns", "20ns:10ns", "a:b", "1:2:3", "1s-2s", "-5:10", ":-5", "nan:1", "1e3:2e3"]
)
def test_what_is_no_window_is_said_in_one_line(text):
    with pytest.raises(UsageError) as error:
        parse_window(text, EXTENT)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("text", "readings"), {
    "1:2": "1ns:2ns or 1s:2s", "1.2:1.5": "1.2ns:1.5ns or 1.2s:1.5s", "0:2": "0ns:2ns or 0s:2s",
    "1s:2": "1s:2ns or 1s:2s", " 1 : 2ms ": "1ns: 2ms or 1s: 2ms", ":5": ":5ns or :5s", "5:": "5ns: or 5s:",
}.items())  # fmt: skip
def test_a_window_without_units_is_refused_with_both_readings(text, readings):
    with pytest.raises(UsageError) as error:
        parse_window(text, EXTENT)
    assert str(error.value) == f"time {text!r} has no unit: write {readings}"
