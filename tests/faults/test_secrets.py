"""A captured environment or command line is on no screen and in no file."""

from pathlib import Path

import jobs
import program
import pytest
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture
from synthetic.demo import TrainingJob

SECRET = "s3cret-9f8e7d6c"
FORMATS = ("csv", "json", "md", "txt", "parquet")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Return a demo job with a secret in its command line and in every captured variable that is not read."""
    directory = tmp_path_factory.mktemp("secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("synthetic.demo.job.PLANTED_SECRET", SECRET)
        paths = TrainingJob(ranks=1, steps=2, layers=1, gpu_metrics=False).write(directory)
    names = ["AWS_SECRET_ACCESS_KEY", "RANK_TOKEN", "rank", "RANK ", "PATH", "HOME", "WANDB_API_KEY", "LD_PRELOAD"]
    environment = dict.fromkeys(names, f"x {SECRET}") | {"RANK": "2"}
    capture = Capture(environment=environment, command=("python", "train.py", f"--token={SECRET}"))
    with ExportWriter(directory / "rank2.sqlite", session=capture) as export:
        export.nvtx_range(export.thread(export.process(7_000, "python"), 7_000, "main"), 1_000, 2_000, "step 0")
    paths.append(directory / "rank2.sqlite")
    assert all(SECRET.encode() in path.read_bytes() for path in paths), "nothing was planted"
    return paths


def told(directory: Path) -> list[Path]:
    """Return the files below a directory with the secret in name or content."""
    found = [path for path in directory.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    return [*found, *(path for path in directory.rglob("*") if SECRET in str(path))]


@pytest.mark.campaign
def test_no_command_tells_it_in_any_form(exports, tmp_path, monkeypatch, asked):
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    before = program.unchanged(exports[0].parent)
    ran = []
    for number, words in enumerate(asked):
        target = tmp_path / f"{number}.{FORMATS[number % len(FORMATS)]}"
        is_one_table = words[0] not in ("diff", "stats")
        ran.append(program.run(*words, *exports, *(("-o", target) if is_one_table and number % 2 else ())))
    ran += [program.run(*words) for words in program.writers(tmp_path, exports)[: 4 if asked is program.FEW else None]]
    assert not program.failures(ran)
    assert not [one.words for one in ran if SECRET in one.out + one.err]
    assert len(list(tmp_path.glob("*.*"))) > 8 and (tmp_path / "cache").is_dir() and (tmp_path / "packed").is_dir()
    assert told(tmp_path) == []
    assert program.unchanged(exports[0].parent) == before


@pytest.mark.campaign
async def test_no_screen_shows_it(exports, tmp_path):
    shown = []
    async with jobs.running(exports, tmp_path / "cache", jobs.WIDE) as (app, pilot):
        for keys in ("d", "i", "F", "2", "u", "4", "6", "7"):
            await pilot.press(keys)
            shown += jobs.screen_text(app)
    assert any("python" in line or "rank" in line for line in shown)
    assert SECRET not in "\n".join(shown)
    assert told(tmp_path) == []
