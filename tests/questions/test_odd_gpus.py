"""Parts of a GPU, and GPUs that share one memory with the CPU."""

from contextlib import closing

import pytest
from support import edit, session_over
from synthetic.illnesses import MS, one_gpu
from synthetic.rare_illnesses import exposed_copies
from triaging import finding, triaged

from nsystui.base.selection import Selection
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.host_copies import link_of

INTEGRATED = ("Orin", "NVIDIA Tegra X2", "NVIDIA Thor", "NVIDIA GB10")


def named(path, name: str) -> None:
    edit(path, f"UPDATE TARGET_INFO_GPU SET name = '{name}'")


@pytest.mark.parametrize(("name", "gpus"), [("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 2), ("NVIDIA H100 80GB HBM3", 1)])
def test_slices_in_two_files_are_two_gpus_although_they_name_the_same_gpu(name, gpus, tmp_path):
    paths = [tmp_path / f"rank{rank}.sqlite" for rank in range(2)]
    for rank, path in enumerate(paths):
        with one_gpu(path) as gpu:
            for start in range(MS, 20 * MS, 2 * MS):
                gpu.kernel(start + rank * MS // 2, start + MS, launched=start - 10_000)
        named(path, name)
    with closing(OpenJob(session_over(*paths))) as job:
        assert len(job.gpus(Selection())) == gpus


@pytest.mark.parametrize("name", [*INTEGRATED, "NVIDIA A30 MIG 2g.12gb", "NVIDIA GB200"])
def test_no_pcie_link_is_made_up(name, tmp_path):
    (path,) = exposed_copies(tmp_path / "a.sqlite").paths
    with closing(session_over(path)) as session:
        assert link_of(session) is not None
    named(path, name)
    with closing(session_over(path)) as session:
        assert link_of(session) is None


@pytest.mark.campaign
@pytest.mark.parametrize("name", INTEGRATED)
def test_copies_within_one_memory_can_be_left_out(name, tmp_path):
    (path,) = exposed_copies(tmp_path / "a.sqlite").paths
    named(path, name)
    item = finding(triaged(path), "exposed-memory")
    assert "share one memory" in item.advice.text and "inned" not in item.advice.text
