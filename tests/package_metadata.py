"""Add the addresses of the clone's remote ``origin`` to the package's metadata and to the links of its README.

A package index then shows the README's pictures. Without a remote on a host, the README stays as it is.
"""

import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_REMOTE = re.compile(r"(?:https://(?:[^@/]*@)?|(?:ssh://)?git@)([\w.-]+\.\w+)[:/](\S+?)(?:\.git)?/?")


class RepositoryHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text, remote = Path(self.root, "README.md").read_text(encoding="utf-8"), ""
        with suppress(OSError):  # no git
            asked = ["git", "-C", self.root, "remote", "get-url", "origin"]
            remote = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if match := _REMOTE.fullmatch(remote):
            page = f"https://{match[1]}/{match[2]}"
            text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{page}/raw/main/", text)
            text = re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{page}/blob/main/", text)
            pages = {"Documentation": "nsystui/docs/screens.md", "Changelog": "CHANGELOG.md"}
            metadata["urls"] = {"Repository": page} | {name: f"{page}/blob/main/{path}" for name, path in pages.items()}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
