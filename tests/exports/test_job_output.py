"""Output of the application: lines and times, never with a variable or a token."""

from datetime import UTC, timedelta, timezone
from pathlib import Path

import pytest
from support import edit
from synthetic import ExportWriter, empty_export
from synthetic.demo import CaptureSession

from nsystui.exports.job_output import read_job_output, time_of

START = 1_780_000_000_000_000_000
"""2026-05-28 20:26:40 UTC."""


def written(path: Path, text: str, stream: str = "stdout") -> Path:
    with ExportWriter(path, session=CaptureSession(utc_epoch_ns=START)) as export:
        export.output(export.process(7), text, stream)
    return path


def shown(path: Path, text: str) -> list[str]:
    return [line.text for line in read_job_output(written(path, text)).lines]


def test_lines_that_look_like_variables_are_left_out(tmp_path):
    variables = [
        "AWS_SECRET_ACCESS_KEY=abc", "SLURM_JOB_ID=4242", "  EMPTY=", "http_proxy=http://user:hunter2@proxy",
        "export FOO=bar", 'declare -x FOO="bar"', "setenv FOO bar", "+ FOO=bar", "3: PATH=/usr/bin",
        "[rank0]: PATH=/usr/bin", "gpu-a01: MY_SECRET=7", "2026-01-01 10:00:00 INFO HF_TOKEN=abc",
        "environ({'HOME': '/root', 'X': 'y'})", '{"WANDB_API_KEY": "abc"}',
        "BASH_FUNC_module%%=() {  eval hunter2; }",
    ]  # fmt: skip
    for line in variables:
        output = read_job_output(written(tmp_path / "x.sqlite", f"before\n{line}\nafter\n"))
        texts = [one.text for one in output.lines]
        assert texts[0] == "before" and set(texts) <= {"before", "after"} and output.left_out == 1, line


def test_other_lines_stay_as_they_are(tmp_path):
    lines = [
        "step=5 loss=0.321 lr=1e-4",
        "loss=0.3",
        "Epoch 1: loss=0.3, acc=0.5",
        "epoch 3/10 [####----] 33%",
        "Namespace(lr=0.1, batch_size=32)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>) 12 us",
        "NCCL INFO NCCL_DEBUG set by environment to INFO.",
        "tokens/s: 12345  num_tokens: 4096",
        "2026-06-01 12:00:00,123 INFO step 3 loss 1.2",
        "loading /scratch/data/imagenet/train/n01440764/n01440764_10026.JPEG",
    ]
    assert shown(tmp_path / "x.sqlite", "".join(f"{line}\n" for line in lines)) == lines
    assert shown(tmp_path / "x.sqlite", f" 1%\r 50%\r100%|####|\r\n{'x' * 5_000}\n") == [
        "100%|####|",
        "x" * 1_000 + "…",
    ]


@pytest.mark.parametrize(("line", "secret"), [
    ("using hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
    ("key AKIAIOSFODNN7EXAMPLE ok", "AKIAIOSFODNN7EXAMPLE"),
    ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
    ("password: hunter2", "hunter2"),
    ("the api_key is hunter2", "hunter2"),
    ("clone https://user:hunter2@github.com/x", "user:hunter2"),
    ("jwt eyJhbGciOi.eyJzdWIiOi.SflKxwRJ", "eyJhbGciOi.eyJzdWIiOi.SflKxwRJ"),
    ("wandb 3f2a9c1d5e7b8a9c0d1e2f3a4b5c6d7e8f9a0b1c", "3f2a9c1d5e7b8a9c0d1e2f3a4b5c6d7e8f9a0b1c"),
    ("get https://s3/x?X-Amz-Signature=abc123&y=1", "abc123"),
    ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me", "AAAAC3NzaC1lZDI1NTE5"),
    ("secret wJalrXUtnFEMI/K7MDENG/bPxRfiCY0123456789AbCd", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY0123456789AbCd"),
])  # fmt: skip
def test_tokens_are_hidden_and_the_line_stays(tmp_path, line, secret):
    [text] = shown(tmp_path / "x.sqlite", f"{line}\n")
    assert secret not in text and "[hidden]" in text


def test_values_of_several_lines_are_left_out_between_variables(tmp_path):
    dump = "A_B=1\nBASH_FUNC_ml%%=() {  eval x;\n  hunter2\n}\nC_D=2\nthen\n-----BEGIN RSA PRIVATE KEY-----\nhunter3\n"
    dump += "-----END RSA PRIVATE KEY-----\nend\n"
    assert shown(tmp_path / "x.sqlite", dump) == ["then", "end"]


def test_streams_keep_their_lines_and_numbers(tmp_path):
    path = tmp_path / "x.sqlite"
    with ExportWriter(path) as export:
        one, other = export.process(7), export.process(8)
        export.output(one, "a\n\nFOO=bar\n")
        export.output(other, "b\n", "stderr")
        export.output(one, "c\n")
    lines = read_job_output(path).lines
    assert [(line.process, line.stream, line.number, line.text) for line in lines] == [
        (one.global_id, "stdout", 1, "a"), (one.global_id, "stdout", 4, "c"), (other.global_id, "stderr", 1, "b")
    ]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), [
    ("2026-05-28 20:26:41,250 step", (START + 1_250_000_000, True)),
    ("[2026-05-28T20:26:41Z] step", (START + 1_000_000_000, False)),
    ("I 2026/05/28 22:26:41.5+02:00 step", (START + 1_500_000_000, True)),
    ("2026-13-28 20:26:41 no such month", (None, False)),
    ("20:26:41 which day", (None, False)),
    (f"{'x' * 80} 2026-05-28 20:26:41", (None, False)),
])  # fmt: skip
def test_line_has_the_time_that_it_begins_with(line, expected):
    assert time_of(line, UTC) == expected
    assert time_of("2026-05-28 22:26:41", timezone(timedelta(hours=2))) == (START + 1_000_000_000, False)
    assert time_of("2026-05-28 22:26:41", None) == (None, False)


def test_times_are_those_of_the_zone_of_the_machine(tmp_path):
    path = written(tmp_path / "x.sqlite", "2026-05-29 01:56:41.5 step\n")
    edit(path, "UPDATE TARGET_INFO_SESSION_START_TIME SET localTime = '2026-05-29T01:56:40'")
    [line] = read_job_output(path).lines
    assert (line.time, line.is_exact) == (START + 1_500_000_000, True)


@pytest.mark.campaign
def test_hostile_lines_take_no_time_and_an_export_without_output_has_none(tmp_path):
    for piece in ("+", "a:", "token", "A=", "[", "x" * 40, "A1b2", "'A':", "-----BEGIN PRIVATE KEY-----"):
        shown(tmp_path / "x.sqlite", "\n".join([piece * 3_000] * 50))
    assert read_job_output(empty_export(tmp_path / "empty.sqlite")).lines == ()
