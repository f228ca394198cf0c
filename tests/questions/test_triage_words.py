"""Sentences of triage, and the notes and help of all questions, are short and plain: recorded answers are read."""

import re

import pytest
from recorded import ANSWERS, blocks_of

from nsystui.questions.queries.question import questions

MOST_WORDS = 40
BANNED = re.compile(
    r"\b(tells?|told|mend(s|ed)?|run dry|ran dry|beside|comes? (late|last)|as many as elsewhere|doors?|it is said)\b"
)
SEVERAL = re.compile(r"\b(GPUs (are|idle|wait|spend)|each GPU|each other GPU|on each)\b")
RIDDLES = re.compile(
    r"\b(but (for|NCCL)|those of these|as many as|whatever|side by side|odd one|in common and|in earnest|"
    r"no (JSON|TOML|UTF-8)|is said|(tells?|told) (of|about)|for (it|they) (is|are|has|have))\b"
)


def without_code(text: str) -> str:
    return re.sub("`[^`]*`", "", text)


def findings_in(block: list[str]) -> dict[str, list[str]]:
    """Return the sentences, advice and reasons of each finding that a triage prints."""
    texts: dict[str, list[str]] = {}
    part = None
    for line in block:
        text = line[2:]
        if head := re.match(r"[EWI]  ([a-z-]+)", text):
            part = texts.setdefault(head[1], [""])
        elif part is not None and text.startswith("   ") and not text.startswith("    "):
            word = text.strip()
            label = re.match("(how to fix|why|could save|see): ", word)
            if label:
                part.append("")
                word = word[label.end() :] if label[1] in ("how to fix", "why") else "\0"
            part[-1] += f" {word}" if part[-1] else word
        else:
            part = None
    return {name: [text for text in own if text and "\0" not in text] for name, own in texts.items()}


TRIAGES = [
    block
    for name in ("triage", "illnesses", "more-illnesses")
    for block in blocks_of((ANSWERS / f"{name}.txt").read_text(encoding="utf-8"))
    if block and block[0].startswith("$ triage") and "--format" not in block[0] and "--baseline" not in block[0]
]


@pytest.mark.parametrize("block", TRIAGES, ids=lambda block: block[0][2:])
def test_findings_are_full_short_and_plain_sentences(block):
    is_one_gpu = any("on 1 GPU" in line for line in block)
    for name, texts in findings_in(block).items():
        for text in texts:
            # CUDA's names keep their first letter.
            assert not text.split()[0].isalpha() or text.split()[0].lower() != text.split()[0], (name, text)
            assert text.endswith((".", ".`")), (name, text)
            assert not BANNED.search(without_code(text)), (name, text)
            for sentence in re.split(r"(?<=[.:;]) ", text):
                assert len(sentence.split()) <= MOST_WORDS, (name, sentence)
        assert not is_one_gpu or not SEVERAL.search(texts[0]), (name, texts[0])


def test_every_finding_has_a_sentence_advice_and_a_reason():
    found = [findings_in(block) for block in TRIAGES]
    assert len({name for own in found for name in own}) > 30
    assert [name for own in found for name, texts in own.items() if len(texts) < 2] == []


def test_notes_of_every_question_are_short_and_plain():
    lines = {line for path in ANSWERS.glob("*.txt") for line in path.read_text(encoding="utf-8").splitlines()}
    notes = [line.partition("note: ")[2] for line in lines if line.startswith("! nsystui: note: ")]
    assert len(notes) > 100
    for note in notes:
        plain = without_code(note)
        assert not BANNED.search(plain) and not RIDDLES.search(plain), note
        for sentence in re.split(r"(?<=[.:;,]) ", plain):
            assert len(sentence.split()) <= MOST_WORDS, sentence


def test_help_of_every_question_is_plain():
    for one in questions():
        assert not RIDDLES.search(f"{one.help}\n{one.description}"), one.name
