"""Fixtures of the tests of the screens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import training_job
from synthetic.demo import TrainingJob
from textual.css.stylesheet import Stylesheet

from nsystui.ui.screens import base, findings
from nsystui.ui.widgets.frame import KeyLine


@pytest.fixture(autouse=True)
def findings_wait(request, monkeypatch) -> None:
    """Compute findings only on request, because every test begins on the overview."""
    if "findings" not in request.keywords:
        monkeypatch.setattr(findings, "MOST_KERNELS", -1)


@pytest.fixture(scope="session")
def many_ranks(written_once) -> list[Path]:
    """Return a job with more ranks than a table or chart has lines at 80x24."""
    return written_once("sixteen", TrainingJob(ranks=16, steps=1, layers=1, gpu_metrics=False).write)


@pytest.fixture(scope="session")
def two_ranks(written_once) -> list[Path]:
    """Return a job whose steps have details, which tests must not change."""
    return written_once("two-ranks", lambda directory: training_job(directory, ranks=2, steps=4, layers=4))


@pytest.fixture(scope="session")
def job(two_ranks) -> list[Path]:
    return two_ranks


@pytest.fixture(scope="session")
def cache(cache_directory) -> Path:
    """Return the cache of the screens, which all tests share."""
    return cache_directory


@pytest.fixture(autouse=True, scope="session")
def styles_are_parsed_once() -> Iterator[None]:
    """Parse the styles once: they are always the same, and parsing takes a tenth of a test's time."""
    parsed: dict[Any, Any] = {}
    parse = Stylesheet._parse_rules

    def parse_once(sheet: Stylesheet, css: str, *words: Any, **options: Any) -> Any:
        key = (css, words, *sorted(options.items()), *sorted(sheet._variables.items()))
        if key not in parsed:
            parsed[key] = parse(sheet, css, *words, **options)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def details_follow_at_once_and_notices_stay() -> Iterator[None]:
    """Show details after 0.05 s without keys instead of 0.2 s, and notices for long, whatever the clock shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "DETAIL_DELAY", 0.05)
        patch.setattr(KeyLine.say, "__defaults__", (600.0,))
        yield
