"""Entry point: ``nsystui``, or ``python -m nsystui``."""

import signal

# Until a command runs, there is nothing to undo: an interrupt ends the process silently, even during an import.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from nsystui.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
