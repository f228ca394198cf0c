"""The forms that nsys writes: reports (``.nsys-rep``, ``.qdrep``), and directories of Parquet files.

``nsys`` itself exports a report. ``nsys export -t parquetdir`` writes a Parquet file for each native table, with the
columns of the SQLite export.
"""

import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nsystui.base.errors import ExportError, reason_of
from nsystui.base.files import opened, remove
from nsystui.exports import REPORT_ENDINGS
from nsystui.exports.forms.form import ELSEWHERE, Advance, Form, is_full

_SECONDS_BETWEEN = 0.1
_MOST_PRINTED, _MOST_SAID = 1 << 26, 1 << 16


def nsys() -> str | None:
    """Return the path of ``nsys``, if it is on the PATH."""
    return shutil.which("nsys")


def _write_report(report: Path, target: Path, advance: Advance) -> None:
    """Let ``nsys export`` write the export, with message sizes if it knows the options for them."""
    program = nsys()
    if program is None:
        advice = "load the module that has nsys, or run `nsys export -t sqlite` where it is"
        raise ExportError(str(report), "a report, and nsys is not on the PATH to export it", advice)
    problem = ""
    for options in (("--include-json=true", "--include-blobs=true"), ()):
        remove(target)
        command = [program, "export", "-t", "sqlite", "--force-overwrite=true", "-o", str(target), *options]
        # The absolute path, because a name may begin with a dash.
        problem = _run([*command, str(report.absolute())], target, advance)
        if not problem:
            return
    advice = ELSEWHERE if is_full(target) else f"try it by hand: {program} export --help"
    raise ExportError(str(report), f"nsys export failed: {problem}", advice)


def _run(command: Sequence[str], target: Path, advance: Advance) -> str:
    """Run a program that writes ``target``, and return why it failed, or an empty string.

    The program does not receive the user's keys. It is killed if ``advance`` raises; its children when it ends.
    """
    from subprocess import DEVNULL, Popen, TimeoutExpired
    from tempfile import TemporaryFile

    def printed() -> list[int]:
        return [os.fstat(file.fileno()).st_size for file in (err, out)]

    with TemporaryFile() as err, TemporaryFile() as out:  # the disk of the target may be full
        with Popen(command, stdin=DEVNULL, stdout=out, stderr=err, start_new_session=True) as program:
            try:
                while program.returncode is None and max(printed()) < _MOST_PRINTED and not _is_odd(target):
                    with suppress(TimeoutExpired):
                        program.wait(_SECONDS_BETWEEN)
                    advance(0.0)
            finally:
                with suppress(OSError):  # all processes have ended
                    os.killpg(program.pid, signal.SIGKILL)
        file = err if printed()[0] else out
        file.seek(max(os.fstat(file.fileno()).st_size - _MOST_SAID, 0))
        message = (file.read().decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
    if program.returncode == 0 and target.is_file() and not _is_odd(target):
        return ""
    return f"{message}; it made no regular file" if _is_odd(target) or not program.returncode else message


def _is_odd(path: Path) -> bool:
    return os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path))


REPORT = Form("a report of nsys", REPORT_ENDINGS, lambda path: path.suffix in REPORT_ENDINGS, _write_report, asks=True)


# Every export has one of these tables, and nothing else has such names.
_TYPICAL_TABLES = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")
_ENDING = ".parquet"


def _is_directory_of_columns(path: Path) -> bool:
    return any(os.path.isfile(path / f"{table}{_ENDING}") for table in _TYPICAL_TABLES)


def _write_tables(directory: Path, target: Path, advance: Advance) -> None:
    """Write every table into the export, with its column types; no row passes through Python."""
    import adbc_driver_sqlite
    import duckdb
    from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement

    names = sorted(name for name in os.listdir(directory) if name.endswith(_ENDING) and not name.startswith("."))
    tables = [directory / name for name in names]
    database = AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=str(target))
    with duckdb.connect(config={"threads": 1}) as reader, database, AdbcConnection(database) as connection:
        for number, path in enumerate(tables):
            advance(number / len(tables))
            try:
                with opened(path) as file, AdbcStatement(connection) as statement:
                    statement.set_options(**{"adbc.ingest.target_table": path.stem})
                    # By descriptor, because the name may have any bytes.
                    statement.bind_stream(reader.from_parquet(f"/dev/fd/{file.fileno()}"))
                    statement.execute_update()
            except Exception as error:  # errors of DuckDB and the driver have no common class
                if isinstance(error, OSError) and error.errno is not None and error.filename != os.fspath(path):
                    raise
                cause = f"{path.name} cannot be read: {reason_of(error)}"
                raise ExportError(str(directory), cause, "copy or export the directory again") from None


PARQUET = Form("a directory of Parquet files", ("_pqtdir", ".parquetdir"), _is_directory_of_columns, _write_tables)
