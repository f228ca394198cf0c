"""GPU clocks that differ from the CPU's by a constant: GPU times are corrected where both bounds meet."""

import re
import shutil

import program
import pytest
from campaign import first
from support import edit, native, shared
from synthetic import ExportWriter
from triaging import finding, told, triaged

US, MS = 1_000, 1_000_000
GPU_TABLES = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")]
SYNCS, KERNELS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", GPU_TABLES[0]
SUBJECTS = ["kernels", "gpu", "gaps", "budget", "events", "memory", "overview", "timeline", "info --show launches",
            "stats -r cuda_gpu_trace,cuda_kern_exec_trace"]  # fmt: skip
NOTE = re.compile(r"^nsystui: note: GPU times are moved.*\n", re.MULTILINE)


def rounds(out, pid, device, waits):
    """Write 40 rounds of 10 ms: a kernel of 1 ms, a memset and a copy to the host, and a wait for each."""
    process = out.process(pid, "python3")
    thread = out.thread(process, pid, "python3")
    for number in range(40):
        at, first = 10 * MS * (number + 1), 5 * number + 1
        out.api(thread, at, at + 5 * US, "cudaLaunchKernel_v7000", first)
        out.kernel(process, device, 7, at + 9 * US, at + MS, name="saxpy(float *)", correlation_id=first)
        out.api(thread, at + 10 * US, at + 15 * US, "cudaMemsetAsync_v3020", first + 1)
        out.memset(process, device, 7, at + MS, at + MS + 5 * US, size=4096, correlation_id=first + 1)
        copy = at + 2 * MS, at + 3 * MS
        out.api(thread, *copy, "cudaMemcpy_v3020", first + 3)
        out.memcpy(process, device, 7, copy[0] + 8 * US, copy[1] - 7 * US, size=1 << 20, kind="DtoH",
                   correlation_id=first + 3)  # fmt: skip
        if waits:
            wait = at + 20 * US, at + MS + 15 * US
            out.api(thread, *wait, "cudaStreamSynchronize_v3020", first + 2)
            out.sync(process, device, 7, wait[0] + US, wait[1] - US, correlation_id=first + 2)


def written(path, gpus=1, waits=True):
    path.parent.mkdir()
    with ExportWriter(path) as out:
        for number in range(gpus):
            rounds(out, 100 + number, number, waits)
    return path


def shifted(original, directory, shift, where="1", tables=GPU_TABLES):
    """Return a copy of an export whose GPU times are later by ``shift``, ns."""
    directory.mkdir(exist_ok=True)
    path = shutil.copyfile(original, directory / original.name)
    present = {name for (name,) in native(path, "SELECT name FROM sqlite_master")}
    edit(path, *(f'UPDATE {table} SET start = start + {shift}, "end" = "end" + {shift} WHERE {where}'
                 for table in tables if table in present))  # fmt: skip
    return path


def answers(path, commands, monkeypatch):
    """Return what each command prints about an export in its directory, and the notes on moved times."""
    monkeypatch.chdir(path.parent)
    ran = [program.answered(*command, path.name) for command in commands]
    notes = [note for one in ran for note in NOTE.findall(one.err)]
    return [(one.out, NOTE.sub("", one.err)) for one in ran], notes


@pytest.mark.parametrize(("waits", "shift"), [
    (False, -156 * MS),
    *(
        pytest.param(*case, marks=pytest.mark.campaign)
        for case in [(True, 823 * MS), (True, -156 * MS), (False, 823 * MS), (True, 3 * MS)]
    ),
])  # fmt: skip
def test_every_figure_is_as_if_the_clock_were_right(tmp_path, monkeypatch, shift, waits):
    original = written(tmp_path / "right" / "rank0.sqlite", waits=waits)
    path = shifted(original, tmp_path / "wrong", shift)
    commands = [subject.split() for subject in SUBJECTS]
    right, no_notes = answers(original, commands, monkeypatch)
    wrong, notes = answers(path, commands, monkeypatch)
    assert (right, no_notes) == (wrong, [])
    moved = f"(process 100, GPU 0) by {'−' if shift > 0 else '+'}{abs(shift) // MS} ms"
    assert len(notes) == len(commands) and all(moved in note for note in notes)
    told(finding(triaged(path), "clock-offset"), moved)


@pytest.mark.campaign
def test_a_packed_job_and_a_second_command_have_corrected_times(tmp_path, monkeypatch):
    path = shifted(written(tmp_path / "right" / "rank0.sqlite"), tmp_path / "wrong", 823 * MS)
    trace = ("events", "--kinds", "kernel", "--format", "csv")
    program.answered("pack", path, "-o", tmp_path / "packed")
    first, second, packed = (program.answered(*trace, source) for source in (path, path, tmp_path / "packed"))
    assert first.out == second.out == packed.out
    assert all(len(NOTE.findall(ran.err)) == 1 for ran in (first, second, packed))


@pytest.mark.parametrize("shift", first(1, [823_456_789, -156_789_123]))
def test_any_offset_leaves_work_between_its_launch_and_its_wait(tmp_path, shift):
    path = shifted(written(tmp_path / "right" / "rank0.sqlite"), tmp_path / "wrong", shift)
    ran = program.answered("info", "--show", "launches", "--format", "json", path)
    least_delay, after_wait = (
        int(re.search(rf'"{key}": (-?\d+)', ran.out)[1]) for key in ("least_delay_ns", "after_wait_ns")
    )
    assert 0 <= least_delay <= 24 * US and -24 * US <= after_wait <= 0


@pytest.mark.campaign
def test_waits_on_the_clock_of_the_gpu_move_with_it(tmp_path, monkeypatch):
    original = written(tmp_path / "right" / "rank0.sqlite")
    path = shifted(original, tmp_path / "wrong", -156 * MS, tables=[*GPU_TABLES, SYNCS])
    commands = [["events", "--kinds", "kernel,sync"]]
    assert answers(path, commands, monkeypatch)[0] == answers(original, commands, monkeypatch)[0]


@pytest.mark.campaign
def test_only_the_gpu_whose_clock_differs_is_moved(tmp_path, monkeypatch):
    original = written(tmp_path / "right" / "ranks.sqlite", gpus=2)
    path = shifted(original, tmp_path / "wrong", 823 * MS, where="deviceId = 1")
    commands = [["kernels", "--by", "rank"], ["gaps"], ["events"]]
    right, _ = answers(original, commands, monkeypatch)
    wrong, notes = answers(path, commands, monkeypatch)
    assert right == wrong and all("process 101, GPU 1" in note and "process 100" not in note for note in notes)


@pytest.mark.campaign
def test_bounds_that_do_not_meet_correct_nothing_and_are_reported(tmp_path):
    path = written(tmp_path / "right" / "rank0.sqlite")
    for table in (SYNCS, "CUPTI_ACTIVITY_KIND_MEMCPY"):
        edit(path, f"DELETE FROM {table}")
    path = shifted(path, tmp_path / "wrong", -156 * MS)
    assert not NOTE.search(program.answered("kernels", path).err)
    told(finding(triaged(path), "clock-offset"), "start 156 ms before their launch")
    assert finding(triaged(path), "clock-offset").severity.value == "error"


def test_bounds_that_contradict_each_other_correct_nothing(tmp_path):
    path = shifted(written(tmp_path / "right" / "rank0.sqlite"), tmp_path / "wrong", 50 * MS, where="rowid % 2")
    assert not NOTE.search(program.answered("kernels", path).err)


@pytest.mark.campaign
@pytest.mark.parametrize("shift", [823 * MS, -156 * MS])
def test_every_answer_about_a_real_export_is_as_if_the_clock_were_right(tmp_path, monkeypatch, shift):
    (original,) = shared("ddp-a100-rank0of4")
    commands = [words for words in program.questions() if "triage" not in words and "" not in words]
    original = shifted(original, tmp_path / "right", 0)
    wrong, notes = answers(shifted(original, tmp_path / "wrong", shift), commands, monkeypatch)
    assert wrong == answers(original, commands, monkeypatch)[0] and len(notes) == len(commands)
