"""An error of the program itself: one line for the user, and its details in a file for who mends it."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback

from nsystui import __version__
from nsystui.base.text import safe_text


def told(error: BaseException) -> str:
    """The line to tell of an error that nothing handled; writes the details to the file that it names."""
    cause = safe_text(" ".join(f"{type(error).__name__}: {error}".split()))
    try:
        # Only its owner may read it: a traceback may hold what lies in an export.
        with tempfile.NamedTemporaryFile(
            "w", prefix="nsystui-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"nsystui {__version__}, Python {platform.python_version()}, {sys.platform}\n\n")
            file.writelines(traceback.format_exception(error))
    except OSError as refusal:
        return f"an error of nsystui itself ({cause}); its details could not be written: {refusal.strerror or refusal}"
    return f"an error of nsystui itself ({cause}); the details to report are in {safe_text(file.name)}"
