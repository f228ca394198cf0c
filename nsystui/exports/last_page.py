"""The page of a table's last rows, looked at itself: rows that it has forgotten leave no gap between rowids.

Of a page that says it has fewer rows than lie in it SQLite reads those and no more. But every byte of a page belongs to
a row, or is counted as free; see "B-tree Pages" in SQLite's file format. What the rows of a page leave over tells.
"""

from __future__ import annotations

from typing import BinaryIO

_LEAF, _INTERIOR = 13, 5
_DEEPEST = 30
_FILE_HEADER = 100


def is_accounted_for(file: BinaryIO, root: int) -> bool:
    """Whether all bytes of the last page of the table at page ``root`` are of its rows or free.

    ``False`` also where the page cannot be found. Raises OSError.
    """
    file.seek(0)
    head = file.read(_FILE_HEADER)
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    try:
        page, start = _last_page(file, root, size)
        return page[start] == _LEAF and _adds_up(page, start, size - head[20])
    except (IndexError, ValueError):
        return False


def _last_page(file: BinaryIO, root: int, size: int) -> tuple[bytes, int]:
    """The page that the last pointers lead to, and where its header begins."""
    number = root
    for _ in range(_DEEPEST):
        file.seek((number - 1) * size)
        page = file.read(size)
        start = _FILE_HEADER if number == 1 else 0
        if page[start] != _INTERIOR:
            return page, start
        number = int.from_bytes(page[start + 8 : start + 12], "big")
    raise ValueError("the pages lead in a circle")


def _adds_up(page: bytes, start: int, usable: int) -> bool:
    first_free, rows, content = (_two(page, start + at) for at in (1, 3, 5))
    content = content or 65536
    used = sum(_cell_size(page, _two(page, start + 8 + 2 * number), usable) for number in range(rows))
    free = 0
    while first_free:
        free += _two(page, first_free + 2)
        following = _two(page, first_free)
        if following and following <= first_free:
            return False
        first_free = following
    return usable - content == used + free + page[start + 7]


def _cell_size(page: bytes, at: int, usable: int) -> int:
    """How many bytes of a row lie in its page."""
    payload, key = _varint(page, at)
    _, body = _varint(page, key)
    most, least = usable - 35, (usable - 12) * 32 // 255 - 23
    if payload > most:  # the rest lies in pages of its own, of which the first is named
        local = least + (payload - least) % (usable - 4)
        payload = (local if local <= most else least) + 4
    return max(body - at + payload, 4)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for place in range(at, at + 8):
        number = number << 7 | page[place] & 127
        if page[place] < 128:
            return number, place + 1
    return number << 8 | page[at + 8], at + 9


def _two(page: bytes, at: int) -> int:
    if at + 2 > len(page):
        raise IndexError(at)
    return int.from_bytes(page[at : at + 2], "big")
