"""Keys on every screen and view, also before the screen has its answer: nothing ends the program."""

from itertools import product
from random import Random

import pytest
from campaign import SEED, cases, some
from idle import until_repainted
from jobs import NARROW, WIDE, press, resize, running, tap
from synthetic.demo import ServingJob, TrainingJob
from synthetic.variants import empty_export

from nsystui.ui import keys
from nsystui.ui.screens.base import JobScreen

pytestmark = pytest.mark.campaign

TABS = [tab[0] for tab in keys.TABS]


def views(app) -> int:
    return len(app.screen.views()) or 1 if isinstance(app.screen, JobScreen) else 1


def ended(app) -> bool:
    return app.return_code is not None or app.failure is not None


EVERY_KEY = sorted({name for key in keys.KEYS if key.action != "quit" for name in key.keys.split(",")} - {"ctrl+z"})


@pytest.mark.findings
@pytest.mark.parametrize("tab", some(len(TABS), TABS))
async def test_every_key_of_the_program_in_every_view(two_ranks, cache, tab, tmp_path, monkeypatch):
    """A fifth of the keys, pressed before and after a view has its answer, also on screens that open."""
    monkeypatch.chdir(tmp_path)
    random = Random(f"{SEED} {tab}")
    async with running(two_ranks, cache, WIDE) as (app, pilot):
        await pilot.press(tab)
        for view in range(views(app)):
            for key in random.sample(EVERY_KEY, min(cases(len(EVERY_KEY) / 5), len(EVERY_KEY))):
                tap(app, "escape", tab, *random.choice([(), (), ("enter",)]), key)
                await until_repainted()
                tap(app, key)
                assert not ended(app), (tab, view, key)
            await pilot.press("escape", "escape", tab, *"V" * (view + 1))
            assert not ended(app), (tab, view)


WRITERS = {
    "server": ServingJob(ranks=2, steps=6, layers=1).write,
    "empty": lambda directory: [empty_export(directory / "empty.sqlite")],
    "many": TrainingJob(ranks=8, steps=1, layers=1, gpu_metrics=False).write,
}


@pytest.mark.findings
@pytest.mark.parametrize("name", WRITERS)
async def test_pairs_of_keys_on_every_tab_at_any_size(name, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = Random(f"{SEED} {name}")
    async with running(WRITERS[name](tmp_path), cache, WIDE) as (app, pilot):
        for tab in some(2 * len(TABS), TABS):
            await resize(pilot, *random.choice([(1, 1), (2, 40), (500, 3), (500, 200), NARROW, WIDE]))
            for pair in random.sample(list(product(EVERY_KEY, repeat=2)), cases(12)):
                tap(app, "escape", "escape", tab, *pair)
                await until_repainted()
                assert not ended(app), (tab, pair)


async def test_a_list_of_choices_opens_in_the_smallest_terminal(demo_job, cache):
    async with running(demo_job, cache, (1, 1), "2", "b") as (app, pilot):
        await press(pilot, "escape")
        assert not ended(app)
