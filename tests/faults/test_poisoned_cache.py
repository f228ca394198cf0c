"""Files of the cache that were changed: no answer changes, and no command fails.

Each file is poisoned in each way, if possible with its old size and time; then commands that read it run again. A few
of these cases run always, more of them in the campaign.
"""

import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import campaign
import program
import pytest
import sqlalchemy as sa
from support import report_in
from synthetic.demo import TrainingJob

from nsystui.base.errors import ExportError
from nsystui.store import seals, tables
from nsystui.store.cache import Cache
from nsystui.store.session import Session

_ANSWERED = ("--format", "csv")
_FEW = [("overview",), ("kernels",), ("nvtx",), ("recipe", "nvtx_gpu_proj_trace")]
# Together these read every kind of file.
_PACKED = [*_FEW, *((name,) for name in ("triage", "nccl", "ranks", "steps", "efficiency", "timeline", "events"))]
# These read columns of an export that is not packed.
_ON_DEMAND = [("kernels",), ("overview",), ("memory",), ("api",), ("nccl",), ("stats", "-r", "cuda_gpu_trace")]
_ASKED = {"few": _FEW[:3], "packed": _PACKED, "columns": _ON_DEMAND}

_opened: set[str] = set()
_is_listening: list[bool] = []


def _listen(event: str, given: tuple[object, ...]) -> None:
    if _is_listening and event == "open" and isinstance(given[0], str | Path):
        _opened.add(str(given[0]))


@dataclass(frozen=True)
class Filled:
    """A cache, with what every command answers; ``reads`` has the files that it opened when it found them there."""

    place: Path
    files: list[Path]
    others: list[Path]
    right: dict[tuple[str, ...], program.Ran]
    reads: dict[tuple[str, ...], set[str]]

    def readers(self, file: Path) -> list[tuple[str, ...]]:
        """Return the commands that read a file of the cache; DuckDB opens the files that a list next to them names.

        Commands that read few other files are first.
        """
        opened = str(file.parent / "report.json" if file.suffix == ".parquet" else file)
        found = [words for words, files in self.reads.items() if opened in files]
        return sorted(found, key=lambda words: len(self.reads[words]))

    def ask(self, words: tuple[str, ...]) -> program.Ran:
        return program.run(*words, *self.files, *_ANSWERED)

    def kinds(self) -> dict[str, list[Path]]:
        """Return the files of the first export, or of all exports, by kind."""
        found: dict[str, list[Path]] = {}
        for file in sorted(self.place.rglob("*")):
            if file.is_file() and (file.parent.name == "answers" or file.parent.name.startswith("rank0")):
                found.setdefault(_kind(file), []).append(file)
        return found

    def twin(self, file: Path) -> Path | None:
        """Return the file of the same kind of another report or question."""
        alike = [one for one in self.place.rglob("*") if one.is_file() and one != file and _kind(one) == _kind(file)]
        strangers = [one for one in alike if one.parent != file.parent]
        return next(iter([one for one in strangers if one.name == file.name] or strangers or alike), None)


def _kind(file: Path) -> str:
    if file.parent.name == "answers":
        return "answer"
    whose = re.sub(r"^.*-[0-9a-f]{24}", "", file.parent.name)
    return f"{whose.partition('-')[0]}/{re.sub('[0-9]+', 'N', file.name)}"


def _filled(place: Path, asked: list[tuple[str, ...]]) -> Filled:
    one, two = TrainingJob(ranks=2, steps=3, layers=2), TrainingJob(ranks=2, steps=4, layers=1, seed=2)
    made = (one.write(place / "one"), two.write(place / "two"))
    files, others = (sorted(path for path in job if path.suffix == ".sqlite") for job in made)
    for words in asked:
        program.run(*words, *others, *_ANSWERED)
    cache = Filled(place / "cache", files, others, {}, {})
    for words in [*asked, *asked]:  # `kernels` asks anew once launches are counted
        cache.right[words] = cache.ask(words)
    assert not program.failures(list(cache.right.values()))
    for words in asked:
        _opened.clear()
        _is_listening.append(True)
        again = cache.ask(words)
        _is_listening.clear()
        assert again.out == cache.right[words].out
        cache.reads[words] = set(_opened)
    return cache


@pytest.fixture(scope="module", autouse=True)
def listening() -> None:
    sys.addaudithook(_listen)


@pytest.fixture(
    scope="module", params=["few", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("packed", "columns"))]
)
def cache(request, tmp_path_factory) -> Iterator[Filled]:
    place = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NSYSTUI_CACHE_DIR", str(place / "cache"))
        if request.param != "packed":  # a kept answer would hide the other files
            patch.setattr("nsystui.questions.answers.remembered.MAX_ROWS", -1)
        yield _filled(place, _ASKED[request.param])


def _keeping_time(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def changed(file: Path) -> None:
        status = file.stat()
        change(file)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    return changed


def _flip(file: Path, place: float) -> None:
    data = bytearray(file.read_bytes())
    data[min(int(place * len(data)), len(data) - 1)] ^= 0x15
    file.write_bytes(data)


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "in-the-way").write_bytes(b"")


WAYS: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""), "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + file.read_bytes()),
    "garbage": lambda file: file.write_bytes(random.Random(1).randbytes(file.stat().st_size)),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "flipped at its beginning": lambda file: _flip(file, 0.02), "flipped": lambda file: _flip(file, 0.5),
    "flipped at its end": lambda file: _flip(file, 0.999), "gone": lambda file: file.unlink(),
    "a directory": _directory,
}  # fmt: skip
TWIN = "another's"


def _poison(cache: Filled, file: Path, way: str) -> None:
    if way != TWIN:
        change = WAYS[way] if way in ("gone", "a directory") else _keeping_time(WAYS[way])
        change(file)
    elif twin := cache.twin(file):
        _keeping_time(lambda one: one.write_bytes(twin.read_bytes()))(file)


def _wrong(cache: Filled, file: Path, way: str, asked: list[tuple[str, ...]]) -> list[str]:
    """Return the failures of commands with a poisoned file, which is restored afterwards."""
    failed = []
    for words in asked:
        if not file.is_file():  # an answer may write a file of another name
            continue
        _poison(cache, file, way)
        for again in ("", " (again)"):
            ran = cache.ask(words)
            if ran.trouble or ran.out != cache.right[words].out or ran.err != cache.right[words].err:
                where = f"{file.relative_to(cache.place)} {way}{again}: {' '.join(words)}"
                failed.append(f"{where}\n{ran.err}\n{ran.trouble.strip().splitlines()[-1:] or 'another answer'}")
        if file.is_dir():
            shutil.rmtree(file)
    return failed


@pytest.mark.campaign
def test_files_in_every_way(cache):
    """Some files of every kind, in an order by ``campaign.SEED``."""
    chance, failed, cases = random.Random(campaign.SEED), [], []
    for files in cache.kinds().values():
        every = [(file, way, words) for file in files for way in (*WAYS, TWIN) for words in cache.readers(file)]
        cases += chance.sample(every, min(len(every), campaign.cases(4)))
    for file, way, words in cases:
        failed += _wrong(cache, file, way, [words])
    assert not failed, f"{len(failed)} of {len(cases)}\n\n" + "\n\n".join(failed)


@pytest.mark.campaign
def test_the_whole_pack_of_another_report(cache):
    first, second = (sorted(cache.place.glob(f"rank{rank}*"), key=lambda one: one.name) for rank in (0, 1))
    for mine, other in zip(first, second, strict=False):
        shutil.rmtree(mine)
        shutil.copytree(other, mine)
    ran = [cache.ask(words) for words in cache.right]
    assert not program.failures(ran)
    assert [one.words[0] for one in ran if one.out != cache.right[one.words[: -len(cache.files) - 2]].out] == []


def _result(head: bytes, rest: bytes = b"") -> bytes:
    """Return a result file: the length of its head, the head in JSON, and the bytes of arrays."""
    return len(head).to_bytes(4, "little") + head + rest


SEALED = {
    "nothing": b"", "no JSON": _result(b'{"value'), "too deep": _result(b"[" * 100_000),
    "too many digits": _result(b'{"value": ' + b"9" * 5_000 + b"}"), "a number": _result(b'{"value": 5}'),
    "a list": _result(b'{"value": [1, "x"]}'),
    "a number for each table": _result(b'{"value": {"kernels": 1e999, "answer": [], "title": 1}}'),
    "too few bytes": _result(b'{"arrays": [["starts", "<i8", "<i8", 1000]]}', bytes(80)),
    "no arrays": _result(b'{"arrays": 5}'),
    "arrays of objects": _result(b'{"arrays": [["starts", "|O", "|O", 1]]}', bytes(8)),
}  # fmt: skip
"""Contents that are not a result of any question."""


@pytest.mark.campaign
def test_a_good_seal_over_something_else(cache, monkeypatch):
    """The result is computed anew, and the file is removed or right afterwards."""
    keys: dict[Path, str] = {}
    read = seals.read

    def noted(file: Path, key: str) -> memoryview | None:
        keys[file] = key
        return read(file, key)

    monkeypatch.setattr(seals, "read", noted)
    for words in cache.right:
        cache.ask(words)
    chance, failed, done = random.Random(campaign.SEED), [], 0
    kept = [[file for file in files if file in keys and cache.readers(file)] for files in cache.kinds().values()]
    for files in filter(None, kept):
        for what in chance.sample(sorted(SEALED), campaign.cases(2)):
            file = chance.choice(files)
            words = cache.readers(file)[0]
            seals.write(file, keys[file], [SEALED[what]], file.parent)
            ran = cache.ask(words)
            right, left = cache.right[words], seals.read(file, keys[file])
            is_right = (ran.out, ran.err, ran.trouble) == (right.out, right.err, "")
            if not is_right or (left is not None and bytes(left) == SEALED[what]):
                failed.append(
                    f"{file.relative_to(cache.place)} {what}: {' '.join(words)} {ran.err} {ran.trouble[-300:]}"
                )
            done += 1
    assert not failed, f"{len(failed)} of {done}\n\n" + "\n\n".join(failed)
    assert done > 3


class TestPackedJob:
    """Packed jobs are the user's data: a damaged report is refused with its file, and results are computed anew."""

    @pytest.fixture(scope="class")
    def packed(self, tmp_path_factory, demo_job) -> Path:
        place = tmp_path_factory.mktemp("job")
        assert program.run("pack", *demo_job[:2], "-o", place / "packed").status == 0
        return place / "packed"

    @pytest.fixture
    def job(self, packed, tmp_path) -> Path:
        return Path(shutil.copytree(packed, tmp_path / "packed"))

    @pytest.mark.campaign
    def test_what_was_computed_is_computed_anew(self, packed, job):
        for command, ways in (("overview", ("empty", "flipped")), ("nvtx", ("half", "garbage"))):
            right = program.run(command, packed, *_ANSWERED)
            for way in ways:
                for whole in packed.rglob("result*.bin"):
                    _keeping_time(WAYS[way])(Path(shutil.copy2(whole, job / whole.relative_to(packed))))
                ran = program.run(command, job, *_ANSWERED)
                assert (ran.out, ran.err, ran.trouble) == (right.out, right.err, ""), way

    @pytest.mark.parametrize("name", campaign.first(1, ["*.parquet", "reports.jsonl"]))
    def test_a_damaged_file_is_named(self, job, name):
        file = next(iter(sorted(job.rglob(name))))
        whole = file.read_bytes()
        for way in ("empty", "half", "flipped", "garbage"):
            file.write_bytes(whole)
            WAYS[way](file)
            os.utime(file)
            before = file.read_bytes()
            ran = program.run("kernels", job, *_ANSWERED)
            line, *_ = [line for line in ran.err.splitlines() if "/reports/" in line]
            assert "damaged" in line and file.name in line and line.endswith(" again)"), way
            assert not ran.trouble and file.read_bytes() == before, way

    def test_a_file_that_is_damaged_after_its_check_stays(self, job, tmp_path):
        (file,) = (job / "kernels").glob("*.parquet")
        with closing(Session(Cache(tmp_path / "cache"))) as session:
            session.add(report_in(job, 0))
            data = file.read_bytes()
            file.write_bytes(data[:4] + bytes(len(data) - 204) + data[-200:])
            with pytest.raises(ExportError, match=f"damaged: kernels/{file.name} is not what was written"):
                session.rows(sa.select(sa.func.max(tables.kernels.c.end)))
        assert len(file.read_bytes()) == len(data)
