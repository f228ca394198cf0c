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


def test_a_map_is_a_table_where_a_format_or_an_order_is_asked_for(run, demo_job, tmp_path):
    words = ["recipe", "cuda_gpu_time_util_map", *demo_job]
    table = run(*words, "--bins", "5", "--format", "csv").table
    assert len(table) == 4 * 5
    assert list(table[0])[:4] == ["Rank", "Device", "Start (ns)", "End (ns)"]
    assert len(run(*words, "--sort", "busy_percent", "--top", "3", "--format", "json").json) == 3
    assert "wrote 120 rows" in run(*words, "-o", tmp_path / "map.parquet").err


def test_a_drawing_is_ascii_where_nothing_else_can_be_shown(run, demo_job, monkeypatch):
    monkeypatch.setattr("nsystui.output.files.wants_ascii", lambda *_: True)
    out = run("recipe", "nccl_gpu_time_util_map", demo_job[0]).out
    assert out.isascii() and "#" in out


def test_ranks_apart_go_to_a_file_with_their_column(run, demo_job, tmp_path):
    target = tmp_path / "kernels.csv"
    done = run("recipe", "cuda_gpu_kern_sum", *demo_job[:2], "--by-rank", "--names", "short", "-o", target)
    assert done.status == 0
    lines = target.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("Rank,Time (%),") and {line.split(",")[0] for line in lines[1:]} == {"0", "1"}


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


def test_diff_is_the_command_diff(run, demo_job):
    sides = [demo_job[0], "--", demo_job[1], "--tables", "kernels", "--format", "csv"]
    assert run("recipe", "diff", *sides).out == run("diff", *sides).out != ""
    assert "name two jobs" in run("recipe", "diff", demo_job[0]).err
