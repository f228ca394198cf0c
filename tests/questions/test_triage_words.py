"""Sentences of triage, and the notes and help of all questions, are short and plain, whatever they are about."""

from __future__ import annotations

import re

import campaign
import pytest
from synthetic import illnesses as ill
from triaging import triaged

import nsystui
from nsystui.questions.queries.registry import questions
from nsystui.questions.triage.finding import Finding
from nsystui.questions.triage.run import Triage

WRITERS = (
    ill.starved, ill.staged_copies, ill.first_use, ill.launch_bound, ill.exposed_communication, ill.layout_changes,
    ill.throttled, ill.full_memory, ill.gil_held, ill.allocator_churn, ill.kernel_outliers, ill.pageable_copies,
    ill.resting_tensor_cores, ill.file_reads, ill.slow_precision, ill.profiler_at_work, ill.preempted,
)  # fmt: skip
MOST_WORDS = 40
BANNED = re.compile(
    r"\b(tells?|told|mend(s|ed)?|run dry|ran dry|beside|comes? (late|last)|as many as elsewhere|doors?|it is said)\b"
)
SEVERAL = re.compile(r"\b(GPUs (are|idle|wait|spend)|each GPU|each other GPU|on each)\b")


@pytest.fixture(scope="module", params=campaign.first(4, WRITERS), ids=lambda one: one.__name__)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Triage:
    """The triage of a job of one GPU that has one illness."""
    return triaged(request.param(tmp_path_factory.mktemp("ill") / "a.sqlite").paths[0])


def texts(one: Finding) -> list[str]:
    return [one.sentence, one.advice.text, one.advice.reason]


def test_findings_are_full_sentences(found):
    for one in found.findings:
        for text in filter(None, texts(one)):
            # A name of CUDA begins as it is written.
            assert not text.split()[0].isalpha() or text.split()[0].lower() != text.split()[0], (one.id, text)
            assert text.endswith((".", ".`")), (one.id, text)


def test_no_sentence_is_long_or_has_words_that_must_be_decoded(found):
    for one in found.findings:
        for text in texts(one):
            assert not BANNED.search(re.sub("`[^`]*`", "", text)), (one.id, text)
            for sentence in re.split(r"(?<=[.:;]) ", text):
                assert len(sentence.split()) <= MOST_WORDS, (one.id, sentence)


def test_one_gpu_is_singular(found):
    assert found.gpus == 1
    assert not SEVERAL.search(found.summary)
    for one in found.findings:
        assert not SEVERAL.search(one.sentence), (one.id, one.sentence)


RIDDLES = re.compile(
    r"\b(but (for|NCCL)|those of these|as many as|whatever|side by side|odd one|in common and|in earnest|"
    r"no (JSON|TOML|UTF-8)|is said|(tells?|told) (of|about)|for (it|they) (is|are|has|have))\b"
)


@pytest.mark.campaign
def test_notes_of_every_question_are_short_and_plain(demo_job):
    notes = {}
    with nsystui.open(*demo_job, no_cache=True) as job:
        for name in nsystui.catalogue()["question"]:
            notes |= dict.fromkeys(job.ask(name).attrs["notes"], name)
    assert len(notes) > 10
    for note, name in notes.items():
        plain = re.sub("`[^`]*`", "", note)
        assert not BANNED.search(plain) and not RIDDLES.search(plain), (name, note)
        for sentence in re.split(r"(?<=[.:;,]) ", plain):
            assert len(sentence.split()) <= MOST_WORDS, (name, sentence)


def test_help_of_every_question_is_plain():
    for one in questions():
        assert not RIDDLES.search(f"{one.help}\n{one.description}"), one.name
