"""An anonymous report: paths, hosts and users in every form stay out of it, names of kernels and ranges stay in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from html import unescape
from pathlib import Path

import campaign
import pytest
from support import edit, native
from synthetic import ExportWriter
from synthetic.demo import TrainingJob
from synthetic.variants import start_gpu_process

_BEHIND = [" ", ", ", ": ", "; ", "#", "&", "!", "[", "$", "'", '"', "`", "(", "|", "=", "\\", "\n"]
"""What a name of a folder may go on with."""
FORMS = [
    "/home/carol/secretproj/train.py",
    ".../home/carol/secretproj/train.py",
    "</home/carol/secretproj/train.py>",
    "</home/carol/...>secretproj",
    *(f"/home/carol/my{text}secretproj/train.py" for text in _BEHIND),
    *("~carol/secretproj", "~/secretproj/x", "../secretproj/x", "./secretproj", "//secretproj//x", "/secretproj"),
    *("C:\\Users\\carol\\secretproj", "C:/Users/carol/secretproj", "\\\\server\\secretproj", "secretproj\\x"),
    *(
        "file:///home/carol/secretproj",
        "s3://secretproj/x",
        "gpu-a01:/secretproj",
        "$HOME/secretproj",
        "${HOME}/secretproj",
    ),
    *("src/secretproj/train.cpp", "secretproj.py(42): step", "home/carol/secretproj", "--data=/secretproj"),
    *("('/secretproj/x')", "%2Fhome%2Fcarol%2Fsecretproj", "secretproj%2Ftrain", "\uff0fhome\uff0fsecretproj"),
    *("GPU-A01", "gpu-a01.secretproj.lab", "gpu-a01-ib0", "on Gpu-A01: step", "10.31.2.77"),
    *("for carol", "CAROL", "secretproj@lab.org", "secretproj@gpu-a01", "user=secretproj", "USERNAME: secretproj"),
]
PLANTED = ("secretproj", "carol", "gpu-a01", "10.31.2", "train.")
KEPT = (
    "forward/layer 3",
    "model/layers.0/attn.c_proj",
    "Optimizer.step#AdamW.step",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "void at::native::<unnamed>::reduce_kernel<(int)512, c10::Half>(T1, T2)",
    "Storage::~Storage()",
    "torch.log",
)


def written(directory: Path) -> str:
    """Whatever a report has, as it is read."""
    files = [unescape(file.read_text(encoding="utf-8")) for file in directory.rglob("*") if file.is_file()]
    return "\n".join([*files, *(text.replace("\\", "") for text in files)])


def found(directory: Path, planted: Sequence[str] = PLANTED) -> list[str]:
    text = written(directory).lower()
    return [one for one in planted if one in text]


def planted_export(path: Path, names: Sequence[str]) -> Path:
    """Every name as that of a kernel, a range, an API call and a thread, and in what nsys says of its capture."""
    with ExportWriter(path) as export:
        process, main = start_gpu_process(export)
        for number, name in enumerate(names):
            start = 1_000_000 * (number + 1)
            export.nvtx_range(main, start - 60_000, start + 60_000, name)
            export.nvtx_range(main, start - 50_000, start + 50_000, "inner")
            export.api(main, start - 30_000, start - 10_000, name, number + 1)
            export.kernel(process, 0, 7, start, start + 50_000, name=name, short=name, correlation_id=number + 1)
            export.diagnostic(start, f"found {name}")
            export.nvtx_thread_name(main, start, name)
    edit(path, "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'gpu-a01' WHERE name = 'Hostname'")
    return path


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("options", "leaks"), [(("--anonymous",), ()), pytest.param((), PLANTED, marks=pytest.mark.campaign)]
)
def test_no_form_of_a_path_host_or_user_is_in_an_anonymous_report(run, tmp_path, options, leaks):
    (tmp_path / "out").mkdir()
    export = planted_export(tmp_path / "rank0.sqlite", FORMS)
    assert run("report", export, *options, "--top", "1000", "-o", tmp_path / "out/r.html").status == 0
    assert tuple(found(tmp_path / "out")) == leaks


def test_names_of_kernels_and_ranges_stay_readable(run, tmp_path):
    (tmp_path / "out").mkdir()
    export = planted_export(tmp_path / "rank0.sqlite", KEPT)
    assert run("report", export, "--anonymous", "--top", "1000", "-o", tmp_path / "out/r.html").status == 0
    text = written(tmp_path / "out")
    assert [name for name in KEPT[:3] if f"{name} › inner" not in text] == []
    smart = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "reduce<half>", "~Storage", "torch.log")
    assert [name for name in smart if name not in text] == []
    assert "(path)" not in text and "(address)" not in text


@pytest.mark.campaign
@pytest.mark.parametrize(("ending", "forms"), [("html", campaign.some(5, FORMS)), ("md", campaign.some(1, FORMS))])
def test_no_form_is_left_in_any_text_of_an_export(run, tmp_path, ending, forms):
    """Each text of each table has a form behind it: everything that a report could show."""
    (original,) = TrainingJob(ranks=1, steps=4, layers=1).write(tmp_path / "home/carol")
    with closing(sqlite3.connect(original)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = [
        (table, column)
        for table in tables
        for _, column, kind, *_ in native(original, f'PRAGMA table_info("{table}")')
        if kind.startswith("TEXT") and not table.startswith("ENUM") and not table.startswith("META_DATA_EXPORT")
    ]
    data, leaking = original.read_bytes(), []
    for number, form in enumerate(forms):
        original.write_bytes(data)
        text = form.replace("'", "''")
        for table, column in columns:
            kept = " WHERE name = 'Hostname'" if table == "TARGET_INFO_SYSTEM_ENV" else ""
            value = "'gpu-a01'" if kept else f"\"{column}\" || ' {text}'"
            if not kept or column == "value":
                edit(original, f'UPDATE OR IGNORE "{table}" SET "{column}" = {value}{kept}')
        target = tmp_path / f"out{number}"
        target.mkdir()
        ran = run("report", original, "--anonymous", "--top", "1000", "-o", target / f"r.{ending}")
        assert ran.status == 0, ran.err
        if leaks := found(target):
            leaking.append((form, leaks))
    assert leaking == []
