"""What the tests of the screens share."""

from __future__ import annotations

import pytest

from nsystui.ui.screens import findings_table


@pytest.fixture(autouse=True)
def findings_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings are not looked for unasked, except in tests that say so: every test begins on the overview."""
    if "findings" not in request.keywords:
        monkeypatch.setattr(findings_table, "MOST_KERNELS", -1)
