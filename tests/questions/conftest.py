"""Fixtures of the tests of questions."""

from collections.abc import Callable, Iterator

import pytest
from filling import Sessions

from nsystui.store.session import Session


@pytest.fixture(scope="module")
def sessions(request, tmp_path_factory) -> Iterator[Sessions]:
    found = Sessions(tmp_path_factory, request.module.Export)
    yield found
    found.close()


@pytest.fixture
def session_of(sessions) -> Iterator[Callable[..., Session]]:
    """Yield a function that opens exports, which functions of a test fill through the ``Export`` of its module."""
    yield sessions.of
    sessions.end_test()
