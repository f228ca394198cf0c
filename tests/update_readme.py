"""Writes the tables of keys and words into the README: ``python tests/update_readme.py``."""

from __future__ import annotations

from pathlib import Path

from nsystui.ui import keys, words

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    for name, table in (("keys", keys.markdown_table()), ("words", words.markdown_table(keys.PLACES))):
        before, _, rest = text.partition(f"<!-- {name} -->")
        _, _, after = rest.partition(f"<!-- end of {name} -->")
        text = f"{before}<!-- {name} -->\n{table}\n<!-- end of {name} -->{after}"
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
