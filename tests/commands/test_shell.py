"""Completion in each shell, made from the parsers; and the examples of every help."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import campaign
import pytest

from nsystui.cli import _run_command, command_parser, main, top_parser
from nsystui.commands import commands, is_question

EVERY = tuple(commands())


def printed(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def needed(program):
    return shutil.which(program) or pytest.skip(f"{program} is not on this machine")


@pytest.fixture
def typed(tmp_path):
    """Return a function that runs a shell next to two exports, one with a blank in its name, and a folder."""
    for name in ("rank0.sqlite", "rank 1.sqlite"):
        (tmp_path / name).touch()
    (tmp_path / "results").mkdir()
    # The shell finds the program that is tested.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def typed(words):
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    return typed


@pytest.fixture
def script(capsys, tmp_path_factory):
    """Return a function that writes the completion script of a shell, and returns its path."""

    def script(shell):
        path = tmp_path_factory.mktemp("script") / "_nsystui"
        path.write_text(printed(capsys, "--print-completion", shell))
        return path

    return script


LINES = [
    # Typed text, some words that are offered, some that are not.
    ("nsystui tri", ["triage"], ["kernels"]), ("nsystui kernels --na", ["--names"], ["--nccl-log"]),
    ("nsystui kernels --names s", ["short"], ["full"]),
    ("nsystui triage --clock ", ["collectives", "utc", "own"], ["rank0.sqlite"]),
    ("nsystui stats -r cuda_gpu_kern_s", ["cuda_gpu_kern_sum"], ["osrt_sum"]),
    ("nsystui stats -r osrt_sum,cuda_gpu_kern_s", ["osrt_sum,cuda_gpu_kern_sum"], ["osrt_sum"]),
    ("nsystui recipe nccl_gpu_t", ["nccl_gpu_time_util_map"], ["cuda_gpu_kern_sum"]),
    ("nsystui kernels ra", ["rank0.sqlite"], ["ranks"]), ("nsystui ra", ["rank0.sqlite", "ranks"], ["triage"]),
    ("nsystui pack -o re", ["results"], ["rank0.sqlite"]),
    ("nsystui --print-completion ", ["bash", "zsh", "fish"], ["triage"]),
    ("nsystui rank0.sqlite --asc", ["--ascii"], ["--names"]), ("nsystui nccl-log --ta", ["--tables"], ["--clock"]),
    ("nsystui kernels --by rank,fam", ["rank,family"], ["rank"]), ("nsystui kernels --sort to", ["total_ns"], ["name"]),
    ("nsystui triage --explain idle-g", ["idle-gaps"], ["straggler"]),
    ("nsystui triage --set gap_", ["gap_ms=", "gap_percent="], ["churn_calls="]),
    ("nsystui recipe gpu_gaps ra", ["rank0.sqlite"], ["ranks"]),
    ("nsystui triage a.sqlite --baseline ra", ["rank0.sqlite"], ["ranks"]),
    ("nsystui diff a.sqlite -- b.sqlite --na", ["--names"], ["rank0.sqlite"]),
    ("nsystui help nu", ["numbers"], ["rank0.sqlite"]), ("nsystui --v", ["--version"], ["--names"]),
]  # fmt: skip

BASH = """
source {script}
COMP_LINE={line}
COMP_POINT=${{#COMP_LINE}}
_python_argcomplete nsystui
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def in_bash(script, line):
    return [needed("bash"), "-c", BASH.format(script=script, line=shlex.quote(line))]


def in_fish(script, line):
    return [needed("fish"), "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"]


@pytest.mark.campaign
@pytest.mark.parametrize(("line", "offered", "not_offered"), campaign.some(6, LINES))
@pytest.mark.parametrize(("shell", "asked"), [("bash", in_bash), ("fish", in_fish)], ids=["bash", "fish"])
def test_the_shell_completes(script, typed, shell, asked, line, offered, not_offered):
    done = typed(asked(script(shell), line))
    assert (done.returncode, done.stderr) == (0, "")
    words = [each.partition("\t")[0].rstrip(" /") for each in done.stdout.splitlines()]
    assert set(offered) <= set(words)
    assert set(not_offered).isdisjoint(words)


@pytest.mark.campaign
def test_names_with_blanks_stay_one_word_in_bash(script, typed):
    done = typed(in_bash(script("bash"), "nsystui rank"))
    assert done.returncode == 0 and "rank\\ 1.sqlite" in done.stdout.splitlines()


ZSH = """
import os, pty, sys, time, select
pid, screen = pty.fork()
if pid == 0:
    os.environ.update(TERM="dumb", ZDOTDIR=sys.argv[1], HOME=sys.argv[1])
    os.execvp("zsh", ["zsh", "-f", "-i"])

def read(until, seconds=20):
    text, end = "", time.monotonic() + seconds
    while until not in text and time.monotonic() < end:
        if select.select([screen], [], [], 0.2)[0]:
            text += os.read(screen, 65536).decode(errors="replace")
    return text

def say(line):
    os.write(screen, line.encode())

say("PS1= PS2=; autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' insert-tab false; LISTMAX=9999\\n")
say(f"source {sys.argv[2]}; echo rea''dy\\n")
read("ready")
say(sys.argv[3] + "\\t\\t")
time.sleep(1.5)
say("\\x15echo do''ne\\n")
sys.stdout.write(read("done"))
os.close(screen)
"""


@pytest.mark.parametrize(("line", "offered"), [
    ("nsystui tria", "triage"),
    ("nsystui kernels --names s", "short"),
    ("nsystui stats -r osrt_sum,cuda_gpu_kern_gb_s", "osrt_sum,cuda_gpu_kern_gb_sum"),
    ("nsystui recipe nccl_gpu_ti", "nccl_gpu_time_util_map"),
    ("nsystui kernels rank0", "rank0.sqlite"),
    ("nsystui rank0.sqlite --asci", "--ascii"), ("nsystui help ", ""), ("nsystui kernels --sort ", ""),
])  # fmt: skip
def test_zsh_completes_and_shows_no_description_where_there_is_none(script, typed, tmp_path, line, offered):
    needed("zsh")
    done = typed(["python3", "-c", ZSH, str(tmp_path), str(script("zsh")), line])
    assert offered in done.stdout.replace("\a", ""), done.stdout + done.stderr
    assert offered or " -- " not in done.stdout, done.stdout


@pytest.mark.parametrize(
    "words", ["kernels --", "kernels --sort ", "kernels --by rank,", "nccl --by ", "report --set "]
)
def test_a_tab_imports_nothing_heavy(words, tmp_path):
    line, answer = f"nsystui {words}", tmp_path / "answer"
    environ = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "COMP_TYPE": "9"}
    environ |= {"_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    command = [sys.executable, "-X", "importtime", "-m", "nsystui"]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)
    assert len(re.split("[\x0b\n]", answer.read_text())) > 5
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argcomplete" in modules and modules.isdisjoint({"sqlalchemy", "numpy", "pandas", "duckdb"})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(script, shell):
    done = subprocess.run([needed(shell), "-n", str(script(shell))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def examples(text):
    """Return the words of the command lines in a help's examples, without a shell's interpretation."""
    found = []
    for line in re.findall(r"^  (.*\bnsystui\b .*)$", text, re.MULTILINE):
        for part in re.split(r" \|\|? ", re.split(r"\s{3,}", line)[0]):
            words = shlex.split(part.partition(" > ")[0].replace("$SLURM_PROCID", "0"))
            if words[:1] == ["nsystui"]:
                found.append(words[1:])
    return found


@pytest.mark.parametrize("name", ["", *EVERY])
def test_the_examples_of_the_help_are_command_lines(monkeypatch, name):
    """The named command parses each line, and stops before it runs."""
    lines = examples(top_parser().format_help() if not name else command_parser(name).epilog)
    assert lines, "no examples"
    asked = []
    monkeypatch.setattr(
        "nsystui.commands.question.QuestionCommand.run",
        lambda command, arguments: asked.append((command.question.name, arguments)) or 0,
    )
    for command in [one for one in EVERY if not is_question(one)]:
        module = f"nsystui.commands.{command.replace('-', '_')}.run"
        monkeypatch.setattr(module, lambda arguments, command=command: asked.append((command, arguments)) or 0)
    for words in lines:
        command = words[0] if words[0] in EVERY else "open"
        rest = words[1:] if words[0] in EVERY else words
        if rest[:1] and rest[0].startswith("--print"):
            continue
        try:
            assert _run_command(command, rest) == 0
        except SystemExit as end:
            assert not end.code, words  # --list-reports prints and ends
    if name:
        assert name in {command for command, _ in asked} or name == "recipe"
