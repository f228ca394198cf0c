"""An anonymous report: paths, hosts and users in every form stay out of it, names of kernels and ranges stay in it."""

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
"""Text that may follow the name of a folder."""
FORMS = [
    "/home/carol/secretproj/train.py", ".../home/carol/secretproj/train.py", "</home/carol/secretproj/train.py>",
    "</home/carol/...>secretproj", *(f"/home/carol/my{text}secretproj/train.py" for text in _BEHIND),
    *("~carol/secretproj", "~/secretproj/x", "../secretproj/x", "./secretproj", "//secretproj//x", "/secretproj"),
    *("C:\\Users\\carol\\secretproj", "C:/Users/carol/secretproj", "\\\\server\\secretproj", "secretproj\\x"),
    *("file:///home/carol/secretproj", "s3://secretproj/x", "gpu-a01:/secretproj", "$HOME/secretproj"),
    "${HOME}/secretproj",
    *("src/secretproj/train.cpp", "secretproj.py(42): step", "home/carol/secretproj", "--data=/secretproj"),
    *("('/secretproj/x')", "%2Fhome%2Fcarol%2Fsecretproj", "secretproj%2Ftrain", "\uff0fhome\uff0fsecretproj"),
    *("GPU-A01", "gpu-a01.secretproj.lab", "gpu-a01-ib0", "on Gpu-A01: step", "10.31.2.77"),
    *("for carol", "CAROL", "secretproj@lab.org", "secretproj@gpu-a01", "user=secretproj", "USERNAME: secretproj"),
]  # fmt: skip
PLANTED = ("secretproj", "carol", "gpu-a01", "10.31.2", "train.")
KEPT = (
    "forward/layer 3", "model/layers.0/attn.c_proj", "Optimizer.step#AdamW.step",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "void at::native::<unnamed>::reduce_kernel<(int)512, c10::Half>(T1, T2)", "Storage::~Storage()", "torch.log",
)  # fmt: skip

NAMES = [
    "quillon", "Zephyrine", "brumaire", "OSTERHAGEN", "Þórunn", "клинок", "秘密計画", "wolkenstein", "Ahlgrím",
    "vexillum",
]  # fmt: skip
"""Secrets, each in several forms."""
HIDING = [
    "data/{}.tfrecord", "models/{}.onnx", "{}.arrow", "shards/{}-00001.jsonl", "images/{}.jpg", "{}.gguf",
    "out/{}.engine", "conf/{}.xml", "{}.lmdb", "cache/{}/index", "{}/checkpoints/last", "./{}", "../../{}", "~{}",
    "~/{}.zarr", "{}.mp4", "weights/{}.msgpack", "{}.orbax-checkpoint", "src/{}/kernel.metal", "/{}", "//{}/share",
    "/mnt/{}/data", "{}.tar.zst", "C:\\{}\\data", "D:/{}", "\\\\{}\\share", "%USERPROFILE%\\{}", "file:///{}",
    "s3://{}/data", "gs://{}", "hf://{}/data", "https://{}/train?step=1", "https://x:{}@host/", "http://{}:8080/",
    "ssh://{}@login", "tcp://{}:29500", "nfs:{}:/data", "node={}.cluster.corp:29500", "{}.corp", "{}.cluster.local",
    "gpu.{}.internal", "host {}", "{}-gpu-07:1234", "{}:29500", "user {}", "user={}", "USER: {}", "login as {}",
    "for {}", "{}@lab.org", "data@{}.org", "owner {} (data)", "uid=1000({})", "${}", "${{{}}}", "${}/data", "%{}%",
    "{}=1", "PATH=/{}", "WANDB_API_KEY={}", "export {}=data", "--project={}", "--{}", "token {}", "Bearer {}",
    "password: {}", "key='{}'", 'load "{}"', "`{}`", "load '{} data'", "step {}", "data loading {}", "kernel<'{}'>",
    'kernel<"{}">(int)', "kernel<int>('{}')", "void kernel<char>(/{}/x)", "ns::kernel<'/{}.bin'>", "{} kernel(int)",
    "triton_{}/x.py_0", "triton_{}.py_0", "{}.forward", "forward {}/step", "layer {}.step", "{}…", "a|{}.log",
    "\uff0f{}\uff0fdata", "{} data", "load {}", "loading data of {}", "[{}] step 3", "step 3: {}", "step#{}", "{}!",
    "job {}: failed", "{}, {}", "\u200b{} x", "data\n{}", "train\t{} x", "pt {} worker", "cudaMalloc of {}",
    "NCCL:{}/x", "aten::linear {}", "{}\u2044data", "{}\u2215data",
]  # fmt: skip
"""Forms of a name, none of which is an identifier or has plain words alone."""
SHAPES = {
    "10.87.3.201": "10.87.3", "on 172.31.9.4:29500": "172.31.9", "fe80::9c3b:7dff:fe12": "9c3b",
    "[2001:db8:85a3::8a2e]:80": "85a3", "2001:db8:0:0:77:0:0:1": "db8:0:0", "::ffff:10.9.8.7": "10.9.8",
    "fe80::71%eth0": "fe80::71", "3c:ec:ef:9a:01:7b": "ef:9a", "9f86d081884c7d659a2feaa0c55ad015": "9f86d081",
    "step 3b18e512dba79e4c": "3b18e512", "model_7c211433f02071597741": "7c211433",
    "123e4567-e89b-12d3-a456-426614174000": "a456", "AKIAIOSFODNN7EXAMPLE": "akiaiosf",
    "ghp_16C7e42F292c6912E7710c8": "16c7e42f", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi": "eyjhb",
    "hf_aB3dE5gH7jK9mN2pQ4rS6": "b3de5", "sk-proj-T3BlbkFJq9Zx8Wv7": "3blbk", "nid004127": "nid004127 ",
    "x3006c0s13b1n0.hsn": "x3006c0s13b1n0", "dgx-h17.cm.cluster": "dgx-h17", "r23i7n11:0": "r23i7n11",
    "_INTERNAL_4ab3c1d2_9_wolken_cu_1f2e3d4c::f": "wolken_cu", "Makefile.wolken": "makefile.",
    "wolken.d/run": "wolken.d",
}  # fmt: skip
"""Addresses, hashes, tokens and hosts, each with the part that gives it away."""


def secrets() -> dict[str, str]:
    """Return each planted text with the part of it that no report may have."""
    told = {
        form.format(name, name): name.lower()
        for number, form in enumerate(HIDING)
        for name in [NAMES[number % len(NAMES)]]
    }
    return told | {text: part.strip() for text, part in SHAPES.items() if text != part.strip()}


def written(directory: Path) -> str:
    """Return all text of a report."""
    files = [unescape(file.read_text(encoding="utf-8")) for file in directory.rglob("*") if file.is_file()]
    return "\n".join([*files, *(text.replace("\\", "") for text in files)])


def found(directory: Path, planted: Sequence[str] = PLANTED) -> list[str]:
    text = written(directory).lower()
    return [one for one in planted if one in text]


def planted_export(path: Path, names: Sequence[str]) -> Path:
    """Write an export with each name as a kernel, range, API call and thread, and in a message of nsys."""
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
    ("options", "leaks"), [(("--anonymous",), ()), ((), PLANTED), (("--anonymous", "--baseline"), ())]
)
def test_no_form_of_a_path_host_or_user_is_in_an_anonymous_report(run, tmp_path, options, leaks):
    (tmp_path / "out").mkdir()
    export = planted_export(tmp_path / "rank0.sqlite", FORMS)
    words = ("report", export, "--top", "1000", "-o", tmp_path / "out/r.html", *options)
    assert run(*words, *[export] * ("--baseline" in options)).status == 0
    assert tuple(found(tmp_path / "out")) == leaks
    assert ("What changed" in written(tmp_path / "out")) == ("--baseline" in options)


def test_no_secret_stays_because_its_kind_is_unknown(run, tmp_path):
    told = secrets()
    assert len(told) >= 120
    (tmp_path / "out").mkdir()
    export = planted_export(tmp_path / "rank0.sqlite", list(told))
    assert run("report", export, "--anonymous", "--top", "1000", "-o", tmp_path / "out/r.html").status == 0
    text = written(tmp_path / "out").lower()
    assert [one for one, part in told.items() if part in text] == []
    assert "kernel 7" in text and "range 7" in text


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
@pytest.mark.parametrize("forms", [campaign.some(5, FORMS), campaign.some(1, list(secrets()))])
def test_no_form_is_left_in_any_text_of_an_export(run, tmp_path, forms):
    """A form follows each text of each table, so that a report could show it anywhere."""
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
        ran = run("report", original, "--anonymous", "--top", "1000", "-o", target / "r.html")
        assert ran.status == 0, ran.err
        if leaks := found(target, PLANTED if form in FORMS else [secrets()[form]]):
            leaking.append((form, leaks))
    assert leaking == []


@pytest.mark.campaign
def test_the_causes_that_triage_names_stay(run, tmp_path):
    assert run("demo", "--directory", tmp_path / "demo", "--write-only").status == 0
    (tmp_path / "out").mkdir()
    files = sorted((tmp_path / "demo").glob("*.sqlite"))
    assert run("report", *files, "--anonymous", "-o", tmp_path / "out/r.html").status == 0
    text = written(tmp_path / "out")
    causes = (
        "cudaMalloc in <code>data loading</code>",
        "waiting for rank 2",
        "flash_fwd",
        "layer_2",
        "Rank 2 (host-2)",
    )
    assert [one for one in causes if one not in text] == []
    assert "(name) in" not in text and "gpu-a0" not in text
