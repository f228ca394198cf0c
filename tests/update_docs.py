"""Write the documents that are made from the code: ``python tests/update_docs.py``."""

from pathlib import Path

from nsystui.ui import keys

DOCS = Path(__file__).parents[1] / "nsystui/docs"


def main() -> None:
    (DOCS / "keys.md").write_text(keys.markdown(), encoding="utf-8")
    glossary = DOCS / "glossary.md"
    before, begin, rest = glossary.read_text(encoding="utf-8").partition("<!-- words -->\n")
    _, end, after = rest.partition("<!-- end of words -->\n")
    table = keys.markdown_table(keys.PLACES)
    glossary.write_text(f"{before}{begin}{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
