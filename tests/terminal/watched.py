"""The program, with every swallowed error written to the file of ``NSYSTUI_ERRORS``.

``python watched.py ARGUMENTS…`` is ``nsystui ARGUMENTS…``: workers may fail without ending it, threads and tasks too.
"""

import asyncio
import os
import sys
import threading
import traceback
from typing import Any

from textual.worker import Worker

from nsystui.cli import main


def note(error: BaseException | None) -> None:
    with open(os.environ["NSYSTUI_ERRORS"], "a", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)) if error is not None else "an error without a name\n")


run = Worker.run


async def watched_run(worker: Worker[Any]) -> Any:
    try:
        return await run(worker)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        note(error)
        raise


if __name__ == "__main__":
    Worker.run = watched_run  # type: ignore[method-assign]
    threading.excepthook = lambda arguments: note(arguments.exc_value)
    sys.unraisablehook = lambda arguments: note(arguments.exc_value)
    asyncio.BaseEventLoop.call_exception_handler = (  # type: ignore[method-assign]
        lambda loop, context: note(context.get("exception"))
    )
    sys.exit(main(sys.argv[1:]))
