"""``nsystui demo`` unpacks whole exports, and never overwrites a file."""

import os
import sys
from pathlib import Path

from disks import small_disk
from support import native

WORDS = ("demo", "--write-only", "--directory")
NAMES = [f"rank{rank}.sqlite" for rank in range(4)]


def test_it_writes_four_ranks_on_two_hosts_and_prints_their_paths(run, tmp_path):
    done = run(*WORDS, tmp_path / "job")
    assert done.out.splitlines() == [str(tmp_path / "job" / name) for name in NAMES]
    assert sorted(os.listdir(tmp_path / "job")) == NAMES
    host = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
    hosts = [text for name in NAMES for (text,) in native(tmp_path / "job" / name, host)]
    assert hosts == ["gpu-a01", "gpu-a01", "gpu-a02", "gpu-a02"]


def test_without_a_directory_the_files_go_into_one_with_a_name_of_its_own(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("demo", "--write-only").out.splitlines() == [f"nsystui-demo/{name}" for name in NAMES]


def test_it_never_writes_over_what_is_there_nor_where_it_cannot(refused, tmp_path):
    (tmp_path / "rank1.sqlite").write_text("somebody's only copy")
    assert "rank1.sqlite already exists" in refused(*WORDS, tmp_path)
    assert "cannot write the demo job" in refused(*WORDS, tmp_path / "rank1.sqlite/below")
    assert os.listdir(tmp_path) == ["rank1.sqlite"]
    (tmp_path / "rank1.sqlite").unlink()
    (tmp_path / "rank3.sqlite").symlink_to("nowhere")
    assert "rank3.sqlite already exists" in refused(*WORDS, tmp_path)
    assert (tmp_path / "rank3.sqlite").is_symlink()


def test_on_a_full_disk_nothing_is_left(refused, tmp_path):
    with small_disk(tmp_path, "size=2m") as disk:
        assert "no space left" in refused(*WORDS, disk / "job", lines=1)
        assert os.listdir(disk / "job") == []


def test_an_interrupt_leaves_nothing(run, tmp_path, monkeypatch):
    replace = Path.replace

    def interrupted(source: Path, target: Path) -> Path:
        if target.name == NAMES[1]:
            raise KeyboardInterrupt
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    assert run(*WORDS, tmp_path / "job").status == 130
    assert os.listdir(tmp_path / "job") == []


def test_a_python_without_lzma_is_told_so(refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lzma", None)
    assert "this Python has no module lzma" in refused(*WORDS, tmp_path, lines=1)
    assert os.listdir(tmp_path) == []
