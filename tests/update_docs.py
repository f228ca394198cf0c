"""Write the documents that are made from the code: ``python tests/update_docs.py``."""

from importlib import import_module
from pathlib import Path

from nsystui.base.selection import Selection
from nsystui.questions.answers.answering import ask
from nsystui.questions.answers.schemas import empty_job
from nsystui.questions.queries.registry import of_family
from nsystui.ui import keys

PACKAGE = Path(__file__).parents[1] / "nsystui"
DOCS, COMPLETIONS = PACKAGE / "docs", PACKAGE / "commands/completions.txt"


def completions() -> str:
    """Return the columns (about a job without events) and members that options of commands take, a line for each."""
    lines = []
    with empty_job() as job:
        for question in of_family(""):
            columns = ask(question, job, Selection(), None).columns
            lines.append(f"{question.name} sort: {' '.join(column.file_key for column in columns)}")
            for option in (option for option in question.options if option.members):
                module, _, name = option.members.partition(":")
                members = getattr(import_module(f"nsystui.questions.{module}"), name)
                lines.append(f"{question.name} {option.name}: {' '.join(member.value for member in members)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    (DOCS / "keys.md").write_text(keys.markdown(), encoding="utf-8")
    COMPLETIONS.write_text(completions(), encoding="utf-8")
    glossary = DOCS / "glossary.md"
    before, begin, rest = glossary.read_text(encoding="utf-8").partition("<!-- words -->\n")
    _, end, after = rest.partition("<!-- end of words -->\n")
    table = keys.markdown_table(keys.PLACES)
    glossary.write_text(f"{before}{begin}{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
