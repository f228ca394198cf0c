"""Small disks for tests of full disks."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, options: str = "size=4m") -> Iterator[Path]:
    """Mount a disk below ``directory``; skip the test if this process may not mount disks."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if not mount or not unmount:
        pytest.skip("there is no mount and umount here")
    place = directory / "disk"
    place.mkdir()
    words = [mount, "-t", "tmpfs", "-o", f"{options},mode=777", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount a small disk")
    try:
        yield place
    finally:
        subprocess.run([unmount, "-l", str(place)], capture_output=True, check=True)


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def half_written(directory: Path) -> list[str]:
    """Return the files below a directory whose names mark an unfinished write."""
    found = [(top, name) for top, *both in os.walk(directory) for names in both for name in names]
    return [os.path.join(top, name) for top, name in found if "partial" in name]
