"""The application that compares two jobs, or two parts of a job."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nsystui.base.errors import NsystuiError
from nsystui.questions.job.opening import JobSource
from nsystui.questions.queries.question import SCREENS
from nsystui.ui.app import Look, NsystuiApp
from nsystui.ui.screens import screen_of
from nsystui.ui.widgets.repainting import in_background, in_own_task

if TYPE_CHECKING:
    from nsystui.questions.compare import ComparisonOptions
    from nsystui.questions.compare.side import Side
    from nsystui.questions.job.job import OpenJob
    from nsystui.ui.loading import KernelsSeen


class DiffApp(NsystuiApp):
    """Reads one or two jobs in turn, and shows how two sides differ.

    ``sides_of`` makes the sides from the jobs, in a thread. Ends with the reason on the terminal if ``sides_of`` raises
    NsystuiError or no file of a job can be read. After an interruption, nothing is compared: half a job would differ
    from the same job.
    """

    MODES: ClassVar[dict[str, object]] = {**NsystuiApp.MODES, "diff": lambda: screen_of("diff")}
    DEFAULT_MODE = "diff"

    def __init__(
        self,
        sources: Sequence[JobSource],
        sides_of: Callable[[Sequence[OpenJob]], tuple[Side, Side]],
        options: ComparisonOptions,
        look: Look,
    ) -> None:
        super().__init__(sources[0], look)
        self.sources = list(sources)
        self.sides: tuple[Side, Side] | None = None
        self.options = options
        self._sides_of = sides_of
        self._reading = 0
        self._shown: tuple[str, Side] | None = None
        self._jobs: dict[int, OpenJob] = {}

    def _begin(self) -> None:
        self._read(0)

    def _read(self, number: int) -> None:
        self._reading = number
        self.loading_now = True
        self._load(self.sources[number])

    def kernels_seen(self, seen: KernelsSeen) -> None:
        """Ignore the kernels of a single job."""

    @in_own_task
    def job_started(self, job: OpenJob, paths: tuple[Path, ...]) -> None:
        self._jobs[self._reading] = job
        for path in paths:
            self._state(path).ready = False
        self.update_screen()

    @in_own_task
    def loading_ended(self, cancelled: bool) -> None:
        """Read the next job, or compare if it was the last."""
        number = self._reading
        self.loading_now = False
        self.update_status()
        if cancelled:
            self.say("stopped: R resumes loading, q quits")
        elif number not in self._jobs or not self._jobs[number].session.reports:
            self._leave_without_files()
        elif number + 1 < len(self.sources):
            self._read(number + 1)
        else:
            self._compare()

    @in_background("sides")
    async def _compare(self) -> None:
        try:
            self.sides = await to_thread(self._sides_of, [self._jobs[number] for number in sorted(self._jobs)])
        except NsystuiError as error:
            self._leave(str(error))
        self.update_screen()

    async def open_side(self, side: Side, letter: str) -> None:
        """Show a side's job and selection on all screens, and close the other side's screens."""
        if self._shown == (letter, side):
            return
        self._shown = letter, side
        await self._forget_steps()
        for mode in set(SCREENS) & set(self._screen_stacks):
            await self.remove_mode(mode)
            self.add_mode(mode, type(self).MODES[mode])  # type: ignore[arg-type]
        self.job, self.selection = side.job, side.selection

    def resume_loading(self) -> bool:
        """Resume the reading after a stop; return whether it was stopped. Reports not in the cache are read again."""
        if self.loading_now or self.sides is not None:
            return False
        self._read(self._reading)
        return True

    @property
    def job_name(self) -> str:
        """The side that the screens show, such as ``B: after``."""
        return super().job_name if self._shown is None else f"{self._shown[0]}: {self._shown[1].label}"

    @property
    def status(self) -> str:
        """The side that is being read, and its progress."""
        words = super().status
        return f"{'AB'[self._reading]}: {words}" if words and len(self.sources) > 1 else words
