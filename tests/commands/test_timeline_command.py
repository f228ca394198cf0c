"""``nsystui timeline``: the lanes as text and as a table."""

import pytest


def test_a_row_for_each_lane_and_column_with_what_dominates_it(run, demo_job):
    rows = run("timeline", *demo_job[:2], "--width", "25", "--format", "json").json
    assert len(rows) == 2 * 25
    for row in rows:
        shares = {name: row[f"{name}_percent"] or 0 for name in ("compute", "nccl", "memory", "graph")}
        if row["category"] == "idle":
            assert row["busy_percent"] == 0
        elif row["category"] is not None:
            assert shares[row["category"]] == max(shares.values()) > 0
            assert max(shares.values()) <= row["busy_percent"] <= 100
    assert (
        sum(row["duration_ns"] for row in rows[:25])
        == rows[24]["start_ns"] + rows[24]["duration_ns"] - rows[0]["start_ns"]
    )


@pytest.mark.campaign
def test_the_event_of_a_column_is_the_one_that_fills_it(run, demo_job):
    events = run("events", demo_job[0], "--format", "json", "--sort", "duration_ns").json
    longest = next(row for row in events if row["kind"] == "kernel")
    start, end = longest["start_ns"], longest["start_ns"] + longest["duration_ns"]
    words = ["timeline", demo_job[0], "--time", f"{start}:{end}", "--width", "10", "--format", "json"]
    words += ["--streams", str(longest["stream"])]
    rows = run(*words).json
    assert {row["event"] for row in rows} == {longest["name"]}
    assert {row["category"] for row in rows} == {"compute"} and {row["busy_percent"] for row in rows} == {100}


def test_a_width_that_is_none_is_refused(refused, demo_job):
    assert "--width 0" in refused("timeline", demo_job[0], "--width", "0")
