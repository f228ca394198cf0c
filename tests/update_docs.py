"""Writes the documents that are made from the code: ``python tests/update_docs.py``."""

from __future__ import annotations

from pathlib import Path

from nsystui.ui import keys

KEYS = Path(__file__).parents[1] / "nsystui/docs/keys.md"


def main() -> None:
    KEYS.write_text(keys.markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
