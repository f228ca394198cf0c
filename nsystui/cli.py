"""The command line: ``nsystui FILE…`` opens the screens, ``nsystui COMMAND FILE…`` answers without them.

Only the module of the requested command is imported, and a command imports heavy libraries when it runs.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from nsystui.base.errors import ExportError, NsystuiError, UsageError
from nsystui.base.terminal import complain, quiet_pipe, text_width
from nsystui.base.text import readable
from nsystui.base.version import __version__
from nsystui.commands import GROUPS, Parser, commands, is_command, is_question, topic_of

if TYPE_CHECKING:
    from nsystui.commands.request import Request

FAILED = 70
# Slurm sends SIGTERM some seconds before SIGKILL.
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_COMMANDS_MEANT = {"summary": "overview", "findings": "triage", "analyze": "triage"}
"""Commands by the names that other tools use."""
_ALIASES = {"compare": "diff"}
"""Second names of commands."""
_OPTIONS_MEANT = {
    "--name": "--filter TEXT",
    **{f"--{form}": f"--format {form}" for form in ("json", "csv", "md", "svg")},
}
"""Options by the names that other tools use."""

_EPILOG = """examples:
  nsystui rank*.sqlite                          open all ranks of a job
  nsystui triage rank*.sqlite                   what is wrong with it, and how to fix it
  nsystui kernels rank0.sqlite                  the kernel summary, without a screen
  nsystui stats -r cuda_gpu_kern_sum --format csv rank0.sqlite > kernels.csv
  nsystui nccl rank*.sqlite --format json
  nsystui export --trace job.json.gz *.sqlite   a trace for Perfetto, or job.prv for Paraver
  nsystui diff before/ -- after/                what changed between two runs
  nsystui nccl-log nccl.*.log --steps 45:50     iterations 45 to 50 in an NCCL_DEBUG=INFO log
  nsystui pack rank*.sqlite -o packed           columns ahead of time: `nsystui packed` needs no exports
  nsystui demo                                  a demo job to look around in
  nsystui help numbers                          how each number is computed; `nsystui help` lists the topics

for your shell:
  nsystui --print-completion bash               completion for bash, zsh or fish, to source

files:
  A FILE is what `nsys export -t sqlite` writes, a directory of such files, or a glob; or what `nsystui pack` wrote.
  Directories of -t parquetdir open too, and traces of the PyTorch profiler.
  Logs of NCCL (NCCL_DEBUG=INFO) open too: alone, or beside exports with --nccl-log.
  Message sizes of NCCL need: nsys export -t sqlite --include-json=true --include-blobs=true REPORT.nsys-rep

environment:
  NSYSTUI_CACHE_DIR     where the columns of opened exports are kept (default: the user's cache directory)
  NSYSTUI_CACHE_LIMIT   its largest size, such as 5G (default: 20G); the least recently used files are removed first
  NSYSTUI_JOBS          CPU threads to use, as --jobs (default: 2 at most)
  NSYSTUI_MEMORY_LIMIT  memory of the whole program, as --memory-limit (default: 1G, or half of the available memory)
  NO_COLOR              no colours, when set and not empty
  XDG_CONFIG_HOME       where nsystui/config.toml has defaults for options (default: ~/.config)

exit status:
  0    done
  1    triage --fail-on: a finding is as severe, or worse
  2    wrong usage, no file could be opened, the answer could not be written (disk full, FILE exists), or no terminal
  3    the exports lack the requested data
  4    answered in part: stderr names the FILE, table or rule that is left out (--allow-missing: 0 for a missing FILE)
  70   an error of nsystui itself: the line says where its details are
  129, 130, 143  interrupted by SIGHUP, SIGINT or SIGTERM; 141: the program that reads the pipe has ended
"""


class CommandModule(Protocol):
    """The interface of a command's module in ``nsystui.commands``, and of the runner of questions."""

    DESCRIPTION: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, request: Request) -> int: ...

    # Optional: ``prepared`` changes the command line before it is parsed; ``delegated`` returns the other command
    # that should run, with its words.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status; report an error of the user as one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ and "COMP_LINE" in os.environ:  # a shell asks for completions
        from nsystui.commands.help import complete

        complete(command_parser)
    atexit.register(_end_quietly)
    # numpy's linear algebra, which is not used, starts a thread for each CPU: 128 on a login node.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(20_000)  # else collecting garbage takes a tenth of a short command
    try:
        return _run(words)
    except NsystuiError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt as interrupt:  # its arguments may include a command's progress
        progress = [str(part) for part in interrupt.args if not isinstance(part, int)]
        complain(": ".join(["interrupted", *progress]))
        return 128 + next((part for part in interrupt.args if isinstance(part, int)), signal.SIGINT)
    except Exception as error:
        from nsystui.base.resources import shortage

        lacking = shortage(error)
        if not lacking:
            from nsystui.base.errors import report_crash

            complain(report_crash(error))
            return FAILED
        complain(lacking)
        return NsystuiError.exit_code


def _end_quietly() -> None:
    """Discard the last output: DuckDB's lines about objects that threads hold, and text that a full disk refused.

    Python would try to write that text again, fail, and change the exit status.
    """
    if sys.__stderr__ is not None:
        with suppress(OSError):
            sys.__stderr__.flush()
        with suppress(OSError), open(os.devnull, "wb") as null_device:
            os.dup2(null_device.fileno(), 2)


def _run(words: list[str]) -> int:
    name = next((word for word in words if not word.startswith("-")), "")
    words[:1] = [_ALIASES.get(word, word) for word in words[:1]]
    # Commands win over files of the same name, which can be opened as ./NAME.
    if words and is_command(words[0]):
        return _run_command(words[0], words[1:])
    if not words or (words[0] in ("-h", "--help") or (not name and "--help" in words)):
        top_parser().print_help()
        return 0
    if words[0] in ("-V", "--version"):
        _print(f"nsystui {__version__}\n")
        return 0
    if words[0].partition("=")[0] == "--print-completion":
        return _print_completion(words)
    _check_words(words, name)
    return _run_command("open", words)


def _check_words(words: Sequence[str], name: str) -> None:
    """Raise UsageError if a command follows its files, or if the only word is neither a file nor a command."""
    for previous, word in pairwise(words):
        if is_command(word) and not os.path.lexists(word) and not _takes_value(previous):
            from nsystui.base.text import shell_word

            remaining = " ".join(shell_word(other) for other in words if other != word)
            raise UsageError(f"put the command before files and options: `nsystui {word} {remaining}`")
    if re.fullmatch(r"[\w-]+", words[0]) and words[0] == name and not os.path.lexists(name):
        import difflib

        # A word with a digit is more likely a file name without its ending.
        similar = [] if re.search("[0-9]", name) else difflib.get_close_matches(name.lower(), commands(), n=1)
        suggestions = [_COMMANDS_MEANT[name]] if name in _COMMANDS_MEANT else similar
        hint = f"did you mean `nsystui {suggestions[0]}`?" if suggestions else "`nsystui --help` lists the commands"
        raise UsageError(f"no file and no command is called {name!r}: {hint}")


def _takes_value(word: str) -> bool:
    """Return whether the next word may be the value of this option of the screens."""
    actions = command_parser("open")._option_string_actions if word.startswith("-") else {}
    return word in actions and actions[word].nargs != 0


def _print_completion(words: list[str]) -> int:
    from nsystui.commands.help import SHELLS, script

    shell = " ".join(words).removeprefix("--print-completion")[1:]
    if shell not in SHELLS:
        raise UsageError(f"--print-completion {shell}: name the shell, one of {', '.join(SHELLS)}")
    _print(script(shell))
    return 0


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help with argparse's width, measured without importing ``shutil``, which imports all compressors."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=text_width() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fill paragraphs, keep indented lines, and wrap them below the beginning of their last column."""
        import textwrap

        lines = []
        for line in re.sub(r"(?m)^(\S.*)\n(?=\S)", r"\1 ", text).splitlines():
            column = max((gap.end() for gap in re.finditer(r"^  [a-z-]+ +(?=\S)|^ +|(?<=\S)  +", line)), default=0)
            lines += textwrap.wrap(line, width + 1, subsequent_indent=" " * column, break_on_hyphens=False) or [""]
        return "\n".join(lines)

    def _format_usage(self, *args: Any) -> str:
        """Move long choices to the left until they fit."""
        lines = super()._format_usage(*args).split("\n")
        return "\n".join(line if len(line) <= self._width else line.strip().rjust(self._width) for line in lines)


class _Parser(Parser):
    """A parser whose help may be piped into ``head``, or shown on a terminal without UTF-8."""

    def print_help(self, file: Any = None) -> None:
        if file is None:
            _print(self.format_help())
        else:
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Report the error and a suggestion, instead of the usage with its thirty options."""
        options = [option for action in self._actions for option in action.option_strings]
        _, _, words = message.partition("unrecognized arguments: ")
        hint = ""
        if words.startswith("--"):
            import difflib

            option = words.split()[0].partition("=")[0]
            close = difflib.get_close_matches(option, options, n=1)
            if option in ("--theme", "--ascii", "--color", "--mouse"):
                hint = "; that is an option of the screens: nsystui FILE…"
            elif meant := _OPTIONS_MEANT.get(option, close[0] if close else ""):
                hint = f"; did you mean {meant}?"
        positionals = [str(action.metavar) for action in self._actions if not action.option_strings]
        usage = f"usage: {self.prog} [OPTIONS] {' '.join(f'{arg}…' if arg == 'FILE' else arg for arg in positionals)}"
        advice = f"`{self.prog} --help` has the options and examples"
        text = f"{usage}\n{self.prog}: error: {readable(message)}{hint}\n{advice}\n"
        with suppress(OSError, AttributeError):  # argparse before Python 3.11.3 fails if stderr is closed or full
            sys.stderr.write(_encodable(text, sys.stderr.encoding))
        self.exit(2)


def _print(text: str) -> None:
    with quiet_pipe() as stream:
        stream.write(_encodable(text, stream.encoding))


def _encodable(text: str, encoding: str | None) -> str:
    """Return the text unchanged if it can be encoded, else in ASCII."""
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        from nsystui.base.text import ascii_glyphs

        return ascii_glyphs(text)
    return text


def top_parser() -> argparse.ArgumentParser:
    """Return the parser that prints the program's help."""
    groups: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name, line in commands().items():
        title = next((title for title, names in GROUPS.items() if name in names.split()), "more")
        groups.setdefault(title, []).append(f"  {name:10} {line}")
    lines = "\n".join("\n".join([f"\n{title}:", *group]) for title, group in groups.items())
    return _Parser(
        prog="nsystui",
        usage="nsystui [OPTIONS] FILE…\n       nsystui COMMAND [OPTIONS] FILE…\n       nsystui --version",
        description=f"A terminal explorer for NVIDIA Nsight Systems exports. Each command has --help.\n{lines}",
        epilog=_EPILOG,
        formatter_class=_Formatter,
        add_help=False,
    )


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command, with its examples."""
    from nsystui.commands.configuration import add_config

    module = _module(name)
    topic = topic_of(name)
    more = f"\n\nMore: nsystui help {topic}" if topic else ""
    parser = _Parser(
        prog="nsystui" if name == "open" else f"nsystui {name}",
        description=f"{module.DESCRIPTION}{more}",
        epilog=f"examples:\n{module.EXAMPLES}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    add_config(parser)
    return parser


def _module(name: str) -> CommandModule:
    if is_question(name):
        from nsystui.commands.question import QuestionCommand
        from nsystui.questions.queries.question import question_named

        return QuestionCommand(question_named(name))
    return importlib.import_module(f"nsystui.commands.{name.replace('-', '_')}")


def _run_command(name: str, words: list[str]) -> int:
    from nsystui.base.resources import spare_addresses, take_open_files

    take_open_files()
    spare_addresses()
    module = _module(name)
    delegate = getattr(module, "delegated", None)
    delegated = None if delegate is None else delegate(words)
    if delegated is not None:
        return _run_command(*delegated)
    from nsystui.commands.configuration import drop_left_in_cache
    from nsystui.commands.request import parsed

    prepare = getattr(module, "prepared", None)
    request = parsed(command_parser(name), words if prepare is None else prepare(words))
    drop_left_in_cache(request.config)
    try:
        with nullcontext() if name == "open" else _interruptible():  # the screens install their own handlers
            return request.status(_answer(module, request))
    finally:
        for line in dict.fromkeys(map(str, request.unread)):
            complain(line)


def _answer(module: CommandModule, request: Request) -> int:
    """Run a command. If a file is damaged, run it again without that file, unless no file remains."""
    try:
        return module.run(request)
    except ExportError as error:
        remaining = request.without(error)
        if remaining is None:
            raise
    return _answer(module, remaining)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn a signal into an exception, so that a command can undo partial work; a second signal ends the process.

    Ignored signals stay ignored, as with nohup. SIGINT is included if ``nsystui.__main__`` started the program.
    """
    is_main = threading.current_thread() is threading.main_thread()
    signals = [number for number in _ENDING_SIGNALS if is_main and signal.getsignal(number) is signal.SIG_DFL]

    def interrupt(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt(number)

    try:
        for number in signals:
            signal.signal(number, interrupt)
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
