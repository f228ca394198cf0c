"""The forms of a report that are not SQLite. Each is converted into a SQLite export in the cache, once.

A form is a module here with a `Form` that `form_of` tries; other rooms need not know it.
"""

from __future__ import annotations

from pathlib import Path

from nsystui.exports.forms.form import EXPORT_ENDINGS, Form


def form_of(path: Path) -> Form | None:
    """Return the form of a file or directory; ``None`` if it is a SQLite export, or unknown.

    Never raises: opening a file reports the error.
    """
    if path.name.endswith(EXPORT_ENDINGS):
        return None
    from nsystui.exports.forms.kineto import KINETO
    from nsystui.exports.forms.nsys import PARQUET, REPORT

    return next((form for form in (REPORT, KINETO, PARQUET) if form.is_of(path)), None)
