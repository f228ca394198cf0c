"""The forms in which a report comes other than as SQLite. Each becomes an export of SQLite in the cache, once.

A form is a module here with a `Form`, and its place in `FORMS`; nothing else in the program knows of it.
"""

from __future__ import annotations

from pathlib import Path

from nsystui.exports.forms.columns import ARROW, PARQUET
from nsystui.exports.forms.compressed import COMPRESSED
from nsystui.exports.forms.form import EXPORT_ENDINGS, Form
from nsystui.exports.forms.kineto import KINETO
from nsystui.exports.forms.reports import RECORDING, REPORT

FORMS = (REPORT, RECORDING, COMPRESSED, KINETO, PARQUET, ARROW)


def form_of(path: Path) -> Form | None:
    """The form of a file or directory; ``None`` for an export of SQLite, and for anything unknown.

    Never raises: opening says what is wrong with a file.
    """
    if path.name.endswith(EXPORT_ENDINGS):
        return None
    return next((form for form in FORMS if form.is_of(path)), None)
