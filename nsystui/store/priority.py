"""The priority of threads that work in the background: other people's programs go first."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

NICE = 10
"""The nice value of such threads."""


def step_back() -> None:
    """Gives the calling thread, and what it starts, at least the nice value ``NICE``, for as long as it lives.

    Only Linux has nice values for single threads: elsewhere nothing happens. There is no way back without root, so
    this is for threads that end with their work.
    """
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, thread) < NICE:
            os.setpriority(os.PRIO_PROCESS, thread, NICE)
