"""The details of an event: its step, the collective that it is part of, and smart names of kernels around it."""

import pytest
from jobs import WIDE, name_of_screen, press, rested, running
from support import native

from nsystui.base.answer import Unit
from nsystui.base.units import format_value


def details(app) -> str:
    return "\n".join(app.screen.pane.lines)


def step_of(path, correlation_id: int) -> int:
    """Return the number in the name of the step around the launching call."""
    found = native(
        path,
        "SELECT coalesce(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.start BETWEEN n.start AND n.end WHERE r.correlationId = ?",
        (correlation_id,),
    )
    (name,) = [name for (name,) in found if name.startswith("step ")]
    return int(name.removeprefix("step "))


@pytest.mark.campaign
async def test_an_nccl_kernel_says_its_step_message_and_who_came_last(job, cache):
    async with running(job, cache, WIDE, "3", "enter") as (app, pilot):
        rows = app.screen.table.answer.records()
        here = next(number for number, row in enumerate(rows) if row["collective"] == "AllReduce")
        app.screen.table.move_to(here)
        seen = [details(await rested(pilot))]
        assert name_of_screen(await press(pilot, "enter")) == "EventsScreen"
        values = app.screen.values()
        rank = int(values["rank"])
        assert values["kind"] == "nccl"
        seen.append(details(app))
        # The kernels of an operation have the same position among the AllReduces of their ranks.
        durations = []
        for path in job:
            found = native(
                path,
                "SELECT k.end - k.start, k.correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                "JOIN StringIds s ON s.id = k.shortName WHERE s.value = ? ORDER BY k.start",
                (str(values["name"]).partition("(")[0],),
            )
            durations.append(found)
        place = next(i for i, (_, one) in enumerate(durations[rank]) if one == values["correlation_id"])
        times = [found[place][0] for found in durations]
        assert values["duration"] == times[rank]
        size = format_value(Unit.BYTES, rows[here]["message_size"])
        for text in seen:
            assert f"step {step_of(job[rank], int(values['correlation_id']))}  {size} · comm " in text
            assert f"transfer {format_value(Unit.DURATION, min(times))}" in text
            if max(times) - min(times) > max(10_000, max(times) // 10):
                assert f"rank {times.index(min(times))} came last" in text


@pytest.mark.campaign
async def test_who_came_last_is_said_also_where_the_communicator_is_not_known(shared_export, cache):
    async with running([shared_export("h100-2rank-moe-before")], cache, WIDE, "3", "enter") as (app, pilot):
        rows = app.screen.table.answer.records()[:2]  # the two kernels of one AlltoAll
        last = min(rows, key=lambda row: row["duration"])["rank"]
        assert {row["rank"] for row in rows} == {0, 1}
        for key in ("home", "down"):
            assert f"rank {last} came last of the open ranks" in details(await press(pilot, key))
