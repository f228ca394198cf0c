"""``nsystui recipe``: the list, the help of each recipe, tables and drawings, and what is refused."""

import pytest

from nsystui.questions.recipes import all_recipes


@pytest.mark.parametrize("words", [[], ["--list-recipes"]])
def test_without_a_name_it_lists_them_all_with_what_they_answer(run, words):
    done = run("recipe", *words)
    assert (done.status, done.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.out.splitlines()]
    assert lines == [[recipe.name, recipe.help] for recipe in all_recipes()]


@pytest.mark.parametrize("recipe", all_recipes(), ids=lambda one: one.name)
def test_the_help_of_a_recipe_names_what_nvidias_gets_wrong(run, recipe):
    done = run("recipe", recipe.name, "--help")
    words = " ".join(done.out.split())
    assert done.status == 0 and words.startswith(f"usage: nsystui recipe {recipe.name} ")
    for text in (*recipe.differs, "rank10 comes before rank2"):
        assert " ".join(text.split()) in words
    assert all(f"--{option}" in words for option in recipe.takes)
    assert max(map(len, done.out.splitlines())) <= 90


def test_a_drawing_is_ascii_where_nothing_else_can_be_shown(run, demo_job, monkeypatch):
    monkeypatch.setattr("nsystui.output.files.wants_ascii", lambda *_: True)
    out = run("recipe", "nccl_gpu_time_util_map", demo_job[0]).out
    assert out.isascii() and "#" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpu_gap"], "did you mean gpu_gaps?"),
        (["gpu_gaps", "--bins", "3"], "does not take --bins: it takes --gap"),
        (["cuda_memcpy_sync", "--by-rank"], "does not take --by-rank: it takes no option of its own"),
        (["gpu_gaps", "--gap", "-1"], "--gap -1: milliseconds, not below 0"),
        (["gpu_gaps", "--gap", "nan"], "--gap nan"),
        (["gpu_time_util", "--threshold", "200"], "--threshold 200: percent"),
        (["gpu_time_util", "--chunks", "0"], "--chunks 0: from 1"),
        (["cuda_gpu_time_util_map", "--bins", "0"], "--bins 0: from 1"),
        (["cuda_gpu_kern_pace", "--name", "nothing"], "no kernel is called 'nothing'"),
        (["cuda_gpu_kern_sum", "--sort", "nothing"], "the columns are "),
    ],
)
def test_what_makes_no_sense_is_one_line(refused, demo_job, words, said):
    assert said in refused("recipe", *words, demo_job[0], lines=1)
