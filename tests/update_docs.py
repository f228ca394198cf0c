"""Write the documents that are made from the code: ``python tests/update_docs.py``."""

from pathlib import Path

from nsystui.base.selection import Selection
from nsystui.questions.answers.schemas import empty_job
from nsystui.questions.kernels.summary import GroupBy
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.queries.question import ask, of_family
from nsystui.ui import keys

PACKAGE = Path(__file__).parents[1] / "nsystui"
MEMBERS = {"kernels": GroupBy, "nccl": NcclProperty}
"""The words that ``--by`` accepts, several at once."""
DOCS, COMPLETIONS = PACKAGE / "docs", PACKAGE / "commands/completions.txt"


def completions() -> str:
    """Return the columns (about a job without events) and members that options of commands take, a line for each."""
    lines = []
    with empty_job() as job:
        for question in of_family(""):
            columns = ask(question, job, Selection(), None).columns
            lines.append(f"{question.name} sort: {' '.join(column.file_key for column in columns)}")
            if question.name in MEMBERS:
                lines.append(f"{question.name} by: {' '.join(member.value for member in MEMBERS[question.name])}")
    return "\n".join(lines) + "\n"


def keys_page() -> str:
    """Return ``docs/keys.md``: the keys of every place."""
    lines = [
        "# Keys: every key of every screen",
        "",
        "A key means the same everywhere; `?` shows the keys of a screen.",
    ]
    for name, title in keys.PLACES.items():
        entries = [key for key in keys.KEYS if key.place_name == name and key.help]
        lines += ["", f"## {title}", "", "| key | effect |", "|---|---|"]
        lines += [f"| `{key.shown}` | {key.help} |" for key in entries]
    return "\n".join(lines) + "\n"


def table_of_words() -> str:
    """Return the table of ``docs/glossary.md``."""
    rows = [
        f"| {word.name} | {word.definition} | {'; '.join(keys.PLACES[name] for name in word.places)} |"
        for word in keys.WORDS
    ]
    return "\n".join(["| word | definition | where |", "|---|---|---|", *rows])


def main() -> None:
    (DOCS / "keys.md").write_text(keys_page(), encoding="utf-8")
    COMPLETIONS.write_text(completions(), encoding="utf-8")
    glossary = DOCS / "glossary.md"
    before, begin, rest = glossary.read_text(encoding="utf-8").partition("<!-- words -->\n")
    _, end, after = rest.partition("<!-- end of words -->\n")
    glossary.write_text(f"{before}{begin}{table_of_words()}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
