"""Makes every picture in ``screenshots/`` from the running program: ``python tests/screenshots.py``.

On the demo job at 120x36 and 80x24, and on real exports where they are (``../shared/data/exports``, or the directory
named on the command line). SVG always; PNG too where ``resvg-py`` (the extra ``screenshots``)
and a monospaced font are.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from scenes import NARROW, SCENES, WIDE, Scene, cache_in, play

from nsystui.exports.demo import training_job
from nsystui.ui.app import NsystuiApp
from nsystui.ui.loading import Source

HERE = Path(__file__).resolve().parents[1]
TARGET = HERE / "screenshots"
REAL = {
    "ddp-a100-rank0of4": ("overview", "kernels", "nccl", "gpu", "efficiency", "nvtx", "events", "timeline"),
    "h100-2rank-moe-before": ("overview", "nccl", "gpu"),
    "cuda-graphs": ("overview", "kernels", "gpu"),
    "gpu-metrics": ("gpu",),
    "no-kernel-table": ("overview", "kernels"),
}


async def picture(files: list[str], scene: Scene, size: tuple[int, int], directory: Path) -> str:
    """The SVG of one scene."""
    app = NsystuiApp(Source(tuple(files), cache_in(directory)))
    async with app.run_test(size=size) as pilot:
        await play(app, pilot, scene.keys)
        return app.export_screenshot(title="nsystui", simplify=True)


def save(name: str, svg: str) -> None:
    """The SVG, and the PNG if it can be made here."""
    # Without this, programs that draw the SVG drop the blanks that begin a line.
    svg = svg.replace("<text class", '<text xml:space="preserve" class')
    (TARGET / f"{name}.svg").write_text(svg, encoding="utf-8")
    try:
        import resvg_py
    except ImportError:
        return
    drawable = svg.replace("Fira Code, monospace", "DejaVu Sans Mono, monospace")
    (TARGET / f"{name}.png").write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=drawable)))


async def main(exports: Path) -> None:
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nsystui-pictures-") as name:
        directory = Path(name)
        (directory / "demo-job").mkdir()
        demo = [str(path) for path in training_job(directory / "demo-job")]
        for scene in SCENES:
            for size in (WIDE, NARROW):
                save(f"{scene.name}-{size[0]}x{size[1]}", await picture(demo, scene, size, directory))
        for export, names in REAL.items():
            path = exports / f"{export}.sqlite"
            if not path.exists():
                print(f"left out: {path} is not here", file=sys.stderr)
                continue
            for scene in SCENES:
                if scene.name in names:
                    save(f"real-{export}-{scene.name}", await picture([str(path)], scene, WIDE, directory))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "shared/data/exports"))
