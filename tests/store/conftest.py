"""Fixtures for tests of the store: an export, a cache, and sessions in memory or through a cache."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from nsystui.store.cache import Cache
from nsystui.store.session import Session


@pytest.fixture
def export(tmp_path, original) -> Path:
    return shutil.copyfile(original, tmp_path / "rank0.sqlite")


@pytest.fixture
def cache(tmp_path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(params=["memory", pytest.param("cache", marks=pytest.mark.campaign)])
def both(request, cache) -> Iterator[Callable[..., Session]]:
    """Yield a function that opens exports in memory or through a cache: the same facts must hold for both."""
    with ExitStack() as sessions:

        def add(*paths: Path, whole: bool = True) -> Session:
            session = Session(cache=cache if request.param == "cache" else None, warn=pytest.fail)
            sessions.enter_context(closing(session))
            for path in paths:
                session.add(path, whole=whole)
            return session

        yield add
