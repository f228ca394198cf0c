"""Waiting in the main thread for results of other threads."""

import subprocess
import sys

WAITS = """import os, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
from nsystui.base.resources import awaited

def interrupt(*_):
    raise KeyboardInterrupt

def work():
    time.sleep(0.2)  # the main thread waits by now, and the signal does not wake it
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(600)

signal.signal(signal.SIGTERM, interrupt)
try:
    list(awaited([ThreadPoolExecutor(1).submit(work)]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""


def test_a_signal_that_another_thread_receives_interrupts_the_waiting():
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
