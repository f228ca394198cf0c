"""NVTX events: domains, ranges, marks, names of threads, and payload schemas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .target import TargetInfo, Thread

CATEGORY: Final = 33
MARK: Final = 34
THREAD_NAME: Final = 39
PUSH_POP: Final = 59
START_END: Final = 60
DOMAIN_CREATE: Final = 75

_NO_UNION_VALUE: Final = (None,) * 7
"""uint64Value … floatValue and jsonTextId, which nobody in this field uses."""


@dataclass(frozen=True, slots=True)
class NvtxPayload:
    """The extended payload of one event in both forms an export can have."""

    json_text: str
    binary_data: bytes
    """32-byte header (u64 domain id, schema id, payload size, offset of the payload), then the payload."""


@dataclass(frozen=True, slots=True)
class PayloadEntry:
    """One entry of a payload schema; `type` is NVTX's number for it, `offset` in bytes."""

    label: str
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class PayloadSchema:
    """A registered payload schema of a domain; `size` in bytes."""

    schema_id: int
    entries: tuple[PayloadEntry, ...]
    size: int


class NvtxEvents(TargetInfo):
    """The part of the writer for NVTX. Times are ns since the session start."""

    def nvtx_range(
        self,
        thread: Thread,
        start: int,
        end: int | None,
        text: str,
        *,
        domain_id: int = 0,
        style: int = PUSH_POP,
        registered: bool = False,
        payload: NvtxPayload | None = None,
        end_thread: Thread | None = None,
        range_id: int | None = None,
        category: int | None = None,
        color: int | None = None,
    ) -> None:
        """A range; `end` None leaves it open. A `registered` string goes to ``textId``, else the text is inline.

        Of `payload` the export gets what the session's options ask for, as with nsys.
        """
        self.rows("NVTX_EVENTS").append(
            (
                start, end, style, range_id, category, color, None if registered else text, thread.global_id,
                None if end_thread is None else end_thread.global_id, self.intern(text) if registered else None,
                domain_id, *_NO_UNION_VALUE,
                payload.json_text if payload and self.session.include_json else None,
                payload.binary_data if payload and self.session.include_blobs else None,
                None,
            )
        )  # fmt: skip

    def nvtx_mark(self, thread: Thread, time: int, text: str, *, domain_id: int = 0) -> None:
        """A mark: an instant with a text."""
        self.nvtx_range(thread, time, None, text, domain_id=domain_id, style=MARK)

    def nvtx_domain(self, thread: Thread, time: int, domain_id: int, name: str) -> None:
        """The creation of a domain; often long before t = 0. Domain ids belong to the process of `thread`."""
        self.nvtx_range(thread, time, None, name, domain_id=domain_id, style=DOMAIN_CREATE)

    def nvtx_thread_name(self, thread: Thread, time: int, name: str) -> None:
        """The program names a thread through NVTX."""
        self.nvtx_range(thread, time, None, name, style=THREAD_NAME)

    def nvtx_category(self, thread: Thread, time: int, category: int, name: str, *, domain_id: int = 0) -> None:
        """The program names a category of a domain."""
        self.nvtx_range(thread, time, None, name, domain_id=domain_id, style=CATEGORY, category=category)

    def payload_schemas(self, domain_id: int, schemas: Iterable[PayloadSchema]) -> None:
        """Register payload schemas, once a process. Schemas before 3.20 have no table for them: nothing is written."""
        if not self.has("NVTX_PAYLOAD_SCHEMAS"):
            return
        for schema in schemas:
            self.rows("NVTX_PAYLOAD_SCHEMAS").append(
                (domain_id, schema.schema_id, None, 1, None, len(schema.entries), schema.size, None)
            )
            for index, entry in enumerate(schema.entries):
                # nsys leaves the offset of the first entry NULL.
                row = (domain_id, schema.schema_id, index, None, entry.type, entry.label, None, None)
                self.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES").append((*row, entry.offset or None))

    def payload_enum(self, domain_id: int, enum_id: int, name: str, values: dict[str, int]) -> None:
        """Register an enumeration that payload entries refer to by `enum_id`; nothing before schema 3.20."""
        if not self.has("NVTX_PAYLOAD_ENUMS"):
            return
        self.rows("NVTX_PAYLOAD_ENUMS").append((domain_id, enum_id, name, len(values), 4))
        for index, (label, value) in enumerate(values.items()):
            self.rows("NVTX_PAYLOAD_ENUM_ENTRIES").append((domain_id, enum_id, index, label, value, 0))
