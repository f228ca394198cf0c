"""Make every picture in ``screenshots/`` from the running program: ``python tests/screenshots.py``.

On the demo job at 120x36 and 80x24, and on real exports if present (``../shared/data/exports``, or the directory
named on the command line), as SVG and PNG; needs ``resvg-py`` (the extra ``screenshots``) and a monospaced font.

``made-from.json`` next to them has the fingerprint of the accepted snapshot for each picture: a test
fails if that snapshot has changed. So accept snapshots first, then make the pictures.
"""

import asyncio
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import idle  # noqa: F401 - pilots wait until the program rests
from scenes import NARROW, SCENES, WIDE, Scene, cache_in
from update_demo import unpack

from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import Look, NsystuiApp

HERE = Path(__file__).resolve().parents[1]
TARGET = HERE / "screenshots"
REAL = {
    "ddp-a100-rank0of4": ("overview", "kernels", "nccl", "gpu", "efficiency", "nvtx", "events", "timeline"),
    "h100-2rank-moe-before": ("overview", "nccl", "gpu"),
    "cuda-graphs": ("overview", "kernels", "gpu"),
    "gpu-metrics": ("gpu",),
    "no-kernel-table": ("overview", "kernels"),
}
MADE_FROM = TARGET / "made-from.json"
SNAPSHOTS = HERE / "tests/ui/__snapshots__/test_snapshots"


def snapshot_path(scene: str, size: tuple[int, int]) -> Path:
    return SNAPSHOTS / f"test_screen_looks_as_it_was_accepted[{scene}-{size[0]}x{size[1]}].svg"


def snapshot_of(scene: str, size: tuple[int, int]) -> str:
    """Return the fingerprint of a scene's accepted snapshot."""
    return hashlib.sha256(snapshot_path(scene, size).read_bytes()).hexdigest()[:16]


def expected(with_real: bool) -> dict[str, str]:
    """Return the names of all pictures, with the fingerprints of their snapshots."""
    names = {
        f"{scene.name}-{size[0]}x{size[1]}": snapshot_of(scene.name, size)
        for scene in SCENES
        for size in (WIDE, NARROW)
    }
    real = {f"real-{export}-{name}": snapshot_of(name, WIDE) for export, scenes in REAL.items() for name in scenes}
    return {**names, **real} if with_real else names


async def picture(files: list[str], scene: Scene, size: tuple[int, int], directory: Path) -> str:
    app = NsystuiApp(JobSource(tuple(files), cache_in(directory)), Look(is_page_light=False))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press(*scene.keys)
        return app.export_screenshot(title="nsystui", simplify=True)


def save(name: str, svg: str) -> None:
    # Without this, programs that draw the SVG drop blanks at the beginning of a line.
    svg = svg.replace("<text class", '<text xml:space="preserve" class')
    (TARGET / f"{name}.svg").write_text(svg, encoding="utf-8")
    import resvg_py

    drawable = svg.replace("Fira Code, monospace", "DejaVu Sans Mono, monospace")
    (TARGET / f"{name}.png").write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=drawable)))


async def main(exports: Path) -> None:
    import resvg_py  # noqa: F401 - before the minutes of work, rather than after the first picture

    TARGET.mkdir(exist_ok=True)
    made: dict[str, str] = json.loads(MADE_FROM.read_text()) if MADE_FROM.exists() else {}
    wanted = expected(with_real=True)
    with tempfile.TemporaryDirectory(prefix="nsystui-pictures-") as place:
        directory = Path(place)
        demo = list(map(str, unpack("training", directory / "demo-job")))
        for scene in SCENES:
            for size in (WIDE, NARROW):
                name = f"{scene.name}-{size[0]}x{size[1]}"
                save(name, await picture(demo, scene, size, directory))
                made[name] = wanted[name]
        for export, names in REAL.items():
            path = exports / f"{export}.sqlite"
            if not path.exists():
                print(f"left out: {path} is not here", file=sys.stderr)
                continue
            for scene in SCENES:
                if scene.name in names:
                    name = f"real-{export}-{scene.name}"
                    save(name, await picture([str(path)], scene, WIDE, directory))
                    made[name] = wanted[name]
    kept = {name: made[name] for name in sorted(wanted) if name in made}
    MADE_FROM.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "shared/data/exports"))
