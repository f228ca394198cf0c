"""``nsystui recipe``: the list, the help of each recipe, tables and drawings, and what is refused."""

import pytest
from synthetic import cpu_only_export, whole_graph_export
from test_byte_units import decimal_names

from nsystui.base.answer import Unit
from nsystui.base.units import format_value
from nsystui.questions.recipes import all_recipes

MAPS = [recipe.name for recipe in all_recipes() if recipe.map and recipe.name[:3] not in ("mpi", "ucx")]


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


@pytest.mark.parametrize("name", MAPS)
def test_a_map_is_drawn_with_a_line_for_each_rank_or_adapter(run, demo_job, name):
    done = run("recipe", name, *demo_job, "--width", "80")
    lines = done.out.splitlines()
    titles = [line for line in lines if line and not line.startswith(" ") and "spans of" not in line]
    assert done.status == 0 and titles
    count = 2 if name == "network_traffic_map" else 4  # the two ranks of a host saw one adapter
    for title in titles:
        first = lines.index(title) + 1
        if title.endswith(": 0 everywhere"):
            continue
        assert sum(max(line) >= "▁" for line in lines[first : first + count]) == count
        assert "│" in lines[first + count]
    assert max(map(len, lines)) <= 80
    assert decimal_names(done.out + done.err) == []


@pytest.mark.campaign
def test_a_drawn_map_words_rates_with_their_unit_and_ends_with_the_mean_of_the_table(run, demo_job):
    lines = run("recipe", "network_traffic_map", *demo_job, "--width", "80").out.splitlines()
    assert not [line for line in lines if "e+" in line]
    received = next(number for number, line in enumerate(lines) if line.startswith("Received, full height "))
    assert lines[received].endswith(" GB/s")
    mean = float(run("network", *demo_job, "--format", "json").json[0]["received_bytes_per_s"])
    assert lines[received + 1].endswith(f" {format_value(Unit.RATE, mean)}")


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


@pytest.mark.campaign
def test_an_export_that_lacks_the_data_says_what_to_record(run, table, tmp_path):
    path = cpu_only_export(tmp_path / "cpu.sqlite")
    lacking = {"cuda_gpu_kern_sum": "cuda", "nccl_gpu_time_util_map": "cuda", "ucx_gpu_time_util_map": "ucx"}
    for name, option in lacking.items():
        done = run("recipe", name, path)
        assert done.status == 3 and f"record with `nsys profile -t {option}" in done.err
    assert table("recipe", "mpi_sum", path)[0]["Name"] == "MPI_Allreduce"


@pytest.mark.campaign
def test_a_rule_that_finds_nothing_is_no_lack_of_data(run, tmp_path):
    path = whole_graph_export(tmp_path / "graphs.sqlite")
    done = run("recipe", "gpu_gaps", path, "--format", "csv")
    assert (done.status, done.table) == (0, []) and "count as busy" in done.err


def test_diff_is_the_command_diff(run, demo_job):
    sides = [demo_job[0], "--", demo_job[1], "--tables", "kernels", "--format", "csv"]
    assert run("recipe", "diff", *sides).out == run("diff", *sides).out != ""
    assert "name two jobs" in run("recipe", "diff", demo_job[0]).err
