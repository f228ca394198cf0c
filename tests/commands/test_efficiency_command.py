"""``nsystui efficiency``."""

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tables", "nothing"], "the tables are breakdown, device, host, processes, mfu, all"),
        (["--tables", "mfu"], "needs --flops-per-step"),
        (["--flops-per-step", "-3"], "must be more than 0"),
        (["--flops-per-step", "nan"], "must be more than 0"),
        (["--peak-tflops", "312"], "goes with --flops-per-step"),
        (["--scaling", "weak"], "goes with --baseline"),
        (["--sort", "idle_percent"], "choose with --tables breakdown"),
        (["--flops-per-step", "1e13", "--step-range", "("], "filter"),
    ],
)
def test_wrong_words_are_one_line(refused, demo_job, words, said):
    assert said in refused("efficiency", *demo_job, *words, lines=1)
