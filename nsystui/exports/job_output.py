"""The application's output in an export: lines, with a time if they begin with it.

Jobs often print their environment, with tokens, by accident. Lines that look like environment variables are left out,
and `HIDDEN` replaces texts that look like tokens (docs/privacy.md#output-of-the-application).
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from nsystui.exports import opening, schema
from nsystui.exports.schema import Schema

HIDDEN = "[hidden]"
TABLE = "ProcessStreams"


@dataclass(frozen=True)
class OutputLine:
    """A line that a process printed: ``number`` counts all lines of its stream.

    ``time`` is the time printed in the line, UTC in ns; ``is_exact`` if it has fractions of a second.
    """

    process: int
    stream: str
    number: int
    time: int | None
    is_exact: bool
    text: str


@dataclass(frozen=True)
class JobOutput:
    """The lines of an export, in the order of each stream, and the number of lines left out."""

    lines: tuple[OutputLine, ...]
    left_out: int


def read_job_output(path: Path) -> JobOutput:
    """Read the application's output from an export. Raises ExportError."""
    with opening.check(path).unchanged(), closing(opening.connect(path)) as connection, opening.sqlite_errors(path):
        native = schema.probe(path, connection)
        zone = _zone(connection, native)
        lines: list[OutputLine] = []
        left_out = 0
        for process, stream, content in _streams(connection, native):
            public = dict(public_lines(content))
            left_out += sum(bool(line) for line in _lines(content)) - sum(bool(text) for text in public.values())
            for number, text in public.items():
                if text:
                    time, is_exact = time_of(text, zone)
                    lines.append(OutputLine(process, stream, number, time, is_exact, text))
    return JobOutput(tuple(lines), left_out)


def _streams(connection: sqlite3.Connection, native: Schema) -> Iterator[tuple[int, str, str]]:
    if not native.columns.get(TABLE, frozenset()) >= {"globalPid", "filenameId", "contentId"}:
        return
    pieces: dict[tuple[int, str], list[str]] = {}
    query = (
        f"SELECT globalPid, f.value, c.value FROM {TABLE} JOIN StringIds c ON c.id = contentId "
        f"LEFT JOIN StringIds f ON f.id = filenameId ORDER BY {TABLE}.rowid"
    )
    for process, file, content in connection.execute(query):
        name = str(file or "").replace("\\", "/").rpartition("/")[2]
        stream = next((standard for standard in ("stdout", "stderr") if standard in name), name)
        key = (process if isinstance(process, int) else 0, stream)
        pieces.setdefault(key, []).append(str(content or ""))
    for (process, stream), contents in pieces.items():
        yield process, stream, "".join(contents)


_MAX_LENGTH = 1_000
"""Lines are read and shown up to this many characters."""


def _lines(content: str) -> list[str]:
    """Return the lines that a terminal would finally show: a progress bar as it was last drawn."""
    lines = content.replace("\r\n", "\n").split("\n")
    drawn = (next((part for part in reversed(line.split("\r")) if part.strip()), "").rstrip() for line in lines)
    return [line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]}…" for line in drawn]


# An assignment at the start of a line, or after a rank, a time or a shell's word.
_ASSIGNMENT = re.compile(
    r"^\s*(?:[\[(]?[\w.\-]+[\])]?[:|>]\s*|[\[(][^\])]*[\])]:?\s*|[+$>]\s*)*"
    r"(?:export\s+|declare\s+-\S+\s+|setenv\s+|set\s+|env\s+)?"
    r"(?P<name>[A-Za-z_][\w()%]*)\s?(?P<sign>=)\s?(?P<value>.*)$"
)
_SETENV = re.compile(r"^\s*(?:setenv|set)\s+(?P<name>[A-Za-z_]\w*)\s+\S")
# A variable anywhere in a line whose value is not a number, as in a shell, a mapping or YAML.
_VARIABLE = re.compile(
    r"""(?<![\w.])["']?(?P<name>[A-Z][A-Z0-9_]{2,})["']?\s?(?:=|["']\s*:|:\s*["'])\s*(?!-?[\d.]+(?:[\s,;)\]}]|$))\S"""
)
_NUMBER = re.compile(r"""["']?[-+]?[\d.,]+(?:e[-+]?\d+)?\s?(?:%|[a-zA-Z/]{1,6})?["']?(?:[\s,;|].*)?""")

_TOKENS = re.compile(
    r"""
    \b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|sk_|pk_|rk_|xox[abeprs]-|nvapi-|dckr_pat_|pypi-|npm_)[\w-]{8,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{12,} | \bAIza[\w-]{20,} | \bya29\.[\w.-]+
    | \beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?
    | (?i:\b(?:bearer|basic)\s+[\w.+/=~-]{8,})
    | (?<=://)[^\s/@:]+:[^\s/@]+(?=@)
    | \bssh-(?:rsa|ed25519|dss)\s+\S+ | \becdsa-\S+\s+\S+
    | (?i:(?<=[?&])(?:sig|signature|token|key|access_token|x-amz-[\w-]+)=[^\s&]+)
    """,
    re.VERBOSE,
)
_NAMED_TOKEN = re.compile(
    r"""(?ix)
    ( (?:pass(?:word|wd|phrase)?|secret|token|api[ _-]?key|access[ _-]?key|private[ _-]?key|credentials?|auth|cookie)
      [\w-]*["']? \s* (?:=|:|\bis\b) \s* ["']? )
    (?! (?:none|null|true|false|[\d.]+)\b )
    ([^\s"',;]+)
    """
)
# Keys and hashes: paths and words are shorter or have fewer digits.
_LONG_WORD = re.compile(r"(?<![\w+=/.-])(?=(?:[A-Za-z+=-]*\d){4})[A-Za-z0-9+=-]{32,}(?![\w+=/.-])")
_LONG_BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[A-Z])(?=(?:[A-Za-z+/]*\d){4})[A-Za-z0-9+/]{40,}={0,2}"
)


def public_lines(content: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that may be shown, numbered from 1, without variables and their values."""
    waiting: list[tuple[int, str]] | None = None
    is_in_key = False
    for number, line in enumerate(_lines(content), 1):
        is_hidden = True
        if is_in_key or "PRIVATE KEY-----" in line:
            is_in_key = "-----END" not in line
        elif variable := _variable_in(line):
            waiting = [] if variable.isupper() else waiting
        else:
            is_hidden = False
        if is_hidden:
            continue
        if waiting is not None:
            waiting.append((number, line))
            if len(waiting) <= 20:  # a shell function's lines, for example
                continue
        yield from ((line_number, _without_tokens(text)) for line_number, text in waiting or [(number, line)])
        waiting = None
    yield from ((line_number, _without_tokens(text)) for line_number, text in waiting or ())


def _variable_in(line: str) -> str:
    """Return the variable that a line sets or shows, in capitals or with a value that is not a number, or ``""``."""
    if match := _SETENV.match(line) or _VARIABLE.search(line):
        return match["name"]
    match = _ASSIGNMENT.match(line)
    if match is None or (not match["name"].isupper() and _NUMBER.fullmatch(match["value"].strip())):
        return ""
    return match["name"].upper() if match["value"].startswith("() {") else match["name"]


def _without_tokens(line: str) -> str:
    line = _TOKENS.sub(HIDDEN, line)
    line = _NAMED_TOKEN.sub(rf"\1{HIDDEN}", line)
    return _LONG_BASE64.sub(HIDDEN, _LONG_WORD.sub(HIDDEN, line))


_TIME = re.compile(
    r"(?<![\d.])(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d\b)?"
)
_WITHIN = 64
"""A line's time begins within this many characters; later times are not the line's."""


def time_of(line: str, zone: timezone | None) -> tuple[int | None, bool]:
    """Return the time that a line begins with, UTC in ns, and whether it has fractions of a second.

    ``zone`` is the machine's time zone, if known.
    """
    match = _TIME.search(line)
    if match is None or match.start() > _WITHIN:
        return None, False
    *parts, fraction, offset = match.groups()
    line_zone = UTC if offset == "Z" else zone
    if offset not in (None, "Z"):
        shift = timedelta(hours=int(offset[1:3]) % 24, minutes=int(offset[-2:]) % 60)
        line_zone = timezone(-shift if offset[0] == "-" else shift)
    if line_zone is None:
        return None, False
    year, month, day, hour, minute, second = map(int, parts)
    try:
        seconds = int(datetime(year, month, day, hour, minute, second, tzinfo=line_zone).timestamp())
    except (ValueError, OverflowError):
        return None, False
    return seconds * 10**9 + int((fraction or "0").ljust(9, "0")), bool(fraction)


def _zone(connection: sqlite3.Connection, native: Schema) -> timezone | None:
    """Return the machine's time zone, from the session's start in UTC and local time."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if not native.columns.get(table, frozenset()) >= {"utcTime", "localTime"}:
        return None
    for texts in connection.execute(f"SELECT utcTime, localTime FROM {table}"):
        utc, local = (time_of(str(text), UTC)[0] for text in texts)
        if utc is not None and local is not None and abs(local - utc) < 24 * 3600 * 10**9:
            # offsets are multiples of 15 minutes
            return timezone(timedelta(minutes=15 * round((local - utc) / (900 * 10**9))))
    return None
