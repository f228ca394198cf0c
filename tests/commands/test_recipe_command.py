"""``nsystui recipe``: the list, the help of each recipe, tables and drawings, and refusals."""

import pytest

from nsystui.questions.recipes import all_recipes


@pytest.mark.parametrize("words", [[], ["--list-recipes"]])
def test_without_a_name_it_lists_them_all_with_what_they_answer(run, words):
    done = run("recipe", *words)
    assert (done.status, done.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.out.splitlines()]
    assert lines == [[recipe.name, recipe.help] for recipe in all_recipes()]


def test_a_drawing_is_ascii_where_nothing_else_can_be_shown(run, demo_job, monkeypatch):
    monkeypatch.setattr("nsystui.output.files.wants_ascii", lambda *_: True)
    out = run("recipe", "nccl_gpu_time_util_map", demo_job[0]).out
    assert out.isascii() and "#" in out
