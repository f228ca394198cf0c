"""Names of NVTX ranges, made comparable: PyTorch writes a new text for every call."""

from __future__ import annotations

import re

_PYTORCH_SUFFIX = re.compile(r", (?:seq|op_id|sizes) =")


def fold_suffix(name: str) -> str:
    """``name`` without what PyTorch's ``emit_nvtx`` adds for each call, so that calls of one operator group together.

    ``aten::copy_, op_id = 998952`` and ``aten::copy_, seq = 7, sizes = [[2]]`` become ``aten::copy_``: everything from
    the first ``, seq =``, ``, op_id =`` or ``, sizes =`` on goes. Other names stay as they are.
    """
    suffix = _PYTORCH_SUFFIX.search(name)
    return name[: suffix.start()] if suffix else name
