"""The nominal rate of the link between GPUs, only if the exports leave no doubt which link that is."""

import pytest

from nsystui.base.selection import Task
from nsystui.questions.nccl.bandwidth import link_rate
from nsystui.questions.queries.tasks import RankedTask


def rank(number: int, host: str, *models: str) -> RankedTask:
    return RankedTask(Task(number, 1), number, "", None, host, 1, "", "", tuple(range(len(models))), models)


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 450e9), ("NVIDIA H200", 450e9), ("NVIDIA A100-SXM4-40GB", 300e9),
        ("Tesla V100-SXM2-16GB", 150e9), ("NVIDIA B200", 900e9), ("NVIDIA GB200", 900e9),
    ],
)  # fmt: skip
def test_the_rate_of_one_direction_follows_from_the_model(model, rate):
    found = link_rate([rank(0, "a", model, model), rank(1, "a", model)])
    assert found is not None and found.rate == rate


@pytest.mark.parametrize(
    "model",
    ["NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL", "Tesla V100-PCIE-16GB", "Tesla T4", "",
     "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "GRID A100-10C"],
)  # fmt: skip
def test_no_rate_is_made_up_for_other_cards(model):
    assert link_rate([rank(0, "a", model)]) is None


def test_between_hosts_and_of_mixed_models_no_rate_is_told():
    h100, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"
    assert link_rate([rank(0, "a", h100), rank(1, "b", h100)]) is None
    assert link_rate([rank(0, "a", h100), rank(1, "a", a100)]) is None
    assert link_rate([]) is None
