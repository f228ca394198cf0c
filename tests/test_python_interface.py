"""The interface for Python gives the answers of the commands, and the examples of its page are true."""

import doctest
import json
import os
import pydoc
from pathlib import Path

import pytest
from synthetic import training_job

import nsystui
from nsystui.cli import main
from nsystui.questions.blocking.budget import Standing

PAGE = Path(__file__).parents[1] / "nsystui/docs/python.md"


@pytest.fixture(scope="module")
def job_files(written_once) -> list[Path]:
    return written_once("python", lambda directory: training_job(directory, ranks=4, steps=6, layers=4))


@pytest.fixture(scope="module")
def job(job_files, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        with nsystui.open(*job_files) as opened:
            yield opened


@pytest.mark.campaign
def test_the_examples_of_the_page_are_true(job_files, monkeypatch, tmp_path):
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(job_files[0].parent)
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert tried
    assert not failed


@pytest.fixture(scope="module")
def findings(job):
    return job.triage()


@pytest.mark.campaign
def test_triage_has_the_rows_of_the_json(findings, job_files, capsys):
    main(["triage", "--format", "json", *map(str, job_files)])
    expected = json.loads(capsys.readouterr().out)
    assert findings.id.tolist() == [row["id"] for row in expected]
    assert findings.sentence.tolist() == [row["sentence"] for row in expected]
    won = findings[findings.recoverable_ns.notna()]
    assert won.id.tolist() == [row["id"] for row in expected if row["recoverable_ns"] is not None] != []
    assert (won.speedup == won.iteration_ns / (won.iteration_ns - won.recoverable_ns)).all()
    assert set(won.standing) <= {one.value for one in Standing}
    assert {one for others in won.includes.dropna() for one in others.split()} <= set(won.id)


@pytest.mark.campaign
def test_thresholds_of_triage_have_their_names(job, findings):
    assert "straggler" in findings.query("severity == 'warning'").id.tolist()
    assert "straggler" not in job.triage({"straggler_percent": 99}).query("severity == 'warning'").id.tolist()
    with pytest.raises(nsystui.UsageError, match="moons"):
        job.triage({"moons": 1})


@pytest.mark.campaign
def test_rows_are_sorted_and_cut_as_the_command_does(job):
    frame = job.ask("kernels", sort="count", top=3)
    assert len(frame) == 3
    assert frame["count"].tolist() == sorted(job.ask("kernels")["count"], reverse=True)[:3]


def test_a_window_is_text_or_two_numbers_of_seconds(job):
    assert job.ask("events", time=(0.01, 0.011)).equals(job.ask("events", time="10ms:11ms"))
    assert job.ask("kernels", time=(None, 0.02)).equals(job.ask("kernels", time=":20ms"))


def test_two_jobs_are_compared_as_the_command_does(job, job_files, capsys):
    assert main(["diff", "--tables", "kernels", "--format", "json", *map(str, job_files), "--", str(job_files[0])]) == 0
    expected = json.loads(capsys.readouterr().out)
    with nsystui.open(job_files[0]) as alone:
        assert nsystui.diff(job, alone, "kernels").name.tolist() == [row["name"] for row in expected]


def test_files_are_compared_as_open_jobs_are(job, job_files):
    with nsystui.open(job_files[0]) as alone:
        expected = nsystui.diff(alone, job, "kernels")
        assert nsystui.diff(job_files[0], str(job_files[0].parent / "*.sqlite"), "kernels").equals(expected)


def test_each_question_is_a_method_and_what_there_is_can_be_listed(job):
    assert {"kernels", "gpu_memory", "nvtx", "ask", "draw"} <= set(dir(job))
    assert job.kernels(by="rank").equals(job.ask("kernels", by="rank"))
    assert job.gpu_memory().equals(job.ask("gpu-memory"))
    assert not hasattr(job, "kernel")
    names = {name.replace("-", "_") for name in nsystui.catalogue().question if " " not in name}
    assert names <= set(dir(job)) and all(getattr(job, name).__doc__ for name in names - {"ranks"})
    assert "gpu_memory" in pydoc.render_doc(job.gpu_memory) and "over_time" in job.gpu_memory.__doc__
    assert dir(nsystui) == sorted(nsystui.__all__)


def test_a_job_is_shown_as_its_ranks(job):
    head, line, *ranks = repr(job).splitlines()
    assert head.split()[:3] == ["rank", "host", "gpu"] and len(line) <= 100
    assert [row.split()[0] for row in ranks] == ["0", "1", "2", "3"]
    assert job._repr_html_().count("<tr") == 1 + 4


def test_a_notebook_shows_what_the_command_draws(job, job_files, capsys):
    assert main(["gpu", "--format", "svg", *map(str, job_files)]) == 0
    drawn = job.draw("gpu")
    assert drawn._repr_svg_() == drawn._repr_html_() == capsys.readouterr().out
    for question, said in (("kernels", "no drawing: job.ask"), ("nccl", "nothing to draw; job.ask")):
        with pytest.raises(nsystui.UsageError, match=said):
            job.draw(question, filter="no such kernel")


@pytest.mark.campaign
def test_a_type_checker_reads_the_types_of_answers(tmp_path):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    script = tmp_path / "script.py"
    script.write_text(
        'import nsystui\n\njob = nsystui.open("a")\nx: int = job.ask("kernels")\ny: int = job.kernels()\njob.kernel()\n'
        + "".join(f"job.{name}\n" for name in dir(nsystui.Job) if not name.startswith("_"))
        + "".join(f"job.{name.replace('-', '_')}\n" for name in nsystui.catalogue().question if " " not in name)
    )
    out, _, _ = api.run(["--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache"), str(script)])
    assert out.count('has type "DataFrame"') == 2 and 'no attribute "kernel"' in out and "3 errors in 1 file" in out, (
        out
    )


@pytest.mark.campaign
def test_ranks_of_findings_are_lists_and_the_catalogue_is_a_frame(job):
    assert job.triage().set_index("id").ranks["straggler"] == [2]
    assert nsystui.catalogue().set_index("question").help["kernels"]


def test_types_do_not_depend_on_the_rows(job):
    whole, nothing = job.ask("kernels"), job.ask("kernels", filter="no such kernel")
    assert not len(nothing)
    assert whole.dtypes.equals(nothing.dtypes)


@pytest.mark.parametrize(("ask", "said"), [
    (lambda job: job.ask("kernel"), "did you mean 'kernels'"),
    (lambda job: job.ask("report"), "command, `nsystui report`"),
    (lambda job: job.ask("triage"), r"job\.triage\(\)"),
    (lambda job: job.ask("kernels", moon=1), "no option 'moon': there are time, ranks"),
    (lambda job: job.ask("kernels", rank=[0]), "did you mean ranks"),
    (lambda job: nsystui.diff(job, job, "kernel"), "did you mean kernels"),
    (lambda job: job.ask("kernels", time="soon"), "soon"),
    (lambda job: job.ask("kernels", ranks=[99]), "rank 99"),
])  # fmt: skip
def test_what_is_not_there_is_a_usage_error(job, ask, said):
    with pytest.raises(nsystui.UsageError, match=said):
        ask(job)


def test_a_closed_job_says_so(job_files):
    job = nsystui.open(job_files[0], no_cache=True)
    job.close()
    job.close()
    assert repr(job) == "<nsystui.Job, closed>"
    for use in (lambda: job.ask("kernels"), job.triage, lambda: job.ranks, lambda: job.files):
        with pytest.raises(nsystui.UsageError, match="closed"):
            use()


def test_a_file_that_cannot_be_opened_is_warned_of_and_none_at_all_is_an_error(job_files, tmp_path):
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"no database")
    with (
        pytest.warns(UserWarning, match=r"broken\.sqlite"),
        nsystui.open(job_files[0], broken, no_cache=True) as opened,
    ):
        assert opened.files == (job_files[0],)
    with pytest.raises(nsystui.NsystuiError, match=r"broken\.sqlite"):
        nsystui.open(broken)
    with pytest.raises(nsystui.NsystuiError):
        nsystui.open()
