"""Numbers, spans and windows as a user types them, or a line about the mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.base.errors import UsageError
from nsystui.base.selection import Window, parse_numbers, parse_window

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


@pytest.mark.parametrize(
    ("text", "readings"),
    {
        "1:2": "1ns:2ns or 1s:2s", "1.2:1.5": "1.2ns:1.5ns or 1.2s:1.5s", "0:2": "0ns:2ns or 0s:2s",
        "1s:2": "1s:2ns or 1s:2s", " 1 : 2ms ": "1ns: 2ms or 1s: 2ms", ":5": ":5ns or :5s", "5:": "5ns: or 5s:",
    }.items(),
)  # fmt: skip
def test_a_window_without_units_is_refused_with_both_readings(text, readings):
    with pytest.raises(UsageError) as error:
        parse_window(text, EXTENT)
    assert str(error.value) == f"time {text!r} has no unit: write {readings}"
