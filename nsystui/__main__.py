"""``python -m nsystui``."""

from nsystui.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
