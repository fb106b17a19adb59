"""Builds row events in which images lack columns, byte by byte. Such an event has a bitmap of the present columns for each kind of image,
and its images have only these columns.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, RowEventKind, TableVersion
from tests.binlog.rows.event_bytes import HEADER_BYTES, image

Values = Mapping[str, Any]


def number(name: str, default: tuple[str | None, ...] = (), **fields: Any) -> Column:
    return Column(name=name, type_code=TypeCode.LONG, mysql_type="int", default=default, **fields)


def text(name: str, default: tuple[str | None, ...] = (), **fields: Any) -> Column:
    return Column(
        name=name, type_code=TypeCode.VARCHAR, metadata=80, charset="utf8mb4", mysql_type="varchar(20)", default=default, **fields
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Change:
    """A row event with one row. `before` and `after` are the values of its images. An image lacks the columns that have no value here."""

    kind: RowEventKind
    before: Values | None = None
    after: Values | None = None


def partial_event(table: TableVersion, changes: Sequence[Change], version: int = 2) -> bytes:
    """Returns a rows event without a checksum. All changes must be of one kind and lack the same columns."""
    names = [column.name for column in table.columns]
    first = changes[0]
    sides = [each for each in (first.before, first.after) if each is not None]
    bitmaps = b"".join(
        sum(1 << index for index, name in enumerate(names) if name in side).to_bytes((len(names) + 7) // 8, "little")
        for side in sides
    )
    images = b"".join(
        image(tuple(side[name] for name in names if name in side)) if side else b""
        for change in changes
        for side in (change.before, change.after)
        if side is not None
    )
    extra = struct.pack("<H", 2) if version == 2 else b""
    body = struct.pack("<IHH", 1, 0, 1) + extra + bytes([len(names)]) + bitmaps + images
    return struct.pack("<IBIIIH", 0, 0, 1, HEADER_BYTES + len(body), 0, 0) + body
