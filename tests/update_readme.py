"""Writes the key table into the README: ``python tests/update_readme.py``."""

from __future__ import annotations

from pathlib import Path

from nsystui.ui import keys

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition("<!-- keys -->")
    _, _, after = rest.partition("<!-- end of keys -->")
    table = f"<!-- keys -->\n{keys.markdown_table()}\n<!-- end of keys -->"
    README.write_text(before + table + after, encoding="utf-8")


if __name__ == "__main__":
    main()
