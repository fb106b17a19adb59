"""Makes messages in the format `protobuf`: packets of Canal's protocol with the entries of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.cdc_engine.binlog.entries.rows import ShownRows
from sluice.cdc_engine.binlog.entries.units import Units
from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, encoded_varint, number_field
from sluice.cdc_engine.binlog.rows.locate import KIND_UPDATE
from sluice.cdc_engine.contracts import Int64s

MESSAGES_TYPE, VERSION, TYPE, BODY, ENTRY = 7, 2, 3, 5, 2


def whole_packet(batch_id: int, messages: bytes) -> bytes:
    """Returns a packet with the batch's id and all entries of the batch, including those for the beginnings and ends of transactions. As in
    Canal, the packet has no version.
    """
    body = number_field(1, batch_id) + messages
    return number_field(TYPE, MESSAGES_TYPE) + encoded_varint(BODY << 3 | 2) + encoded_varint(len(body)) + body


def packet_of(entries: Sequence[bytes]) -> bytes:
    """Returns a packet with the entries for one topic and partition. As in Canal, the packet has no batch id."""
    body = b"".join(bytes_field(ENTRY, entry) for entry in entries)
    return number_field(VERSION, 1) + number_field(TYPE, MESSAGES_TYPE) + bytes_field(BODY, body)


def by_unit(shown: ShownRows, units: Units) -> tuple[ShownRows, Int64s]:
    """Returns the rows with each unit as an event of its own, so that each unit gets its own entry. A unit is the change of one row, or a
    half of an update that moves the row to another partition (see `units_of`). Also returns, for each unit, the row count of the event that
    the unit comes from. The header of the unit's entry contains this row count.
    """
    paired = units.kind == KIND_UPDATE
    owner = np.repeat(np.arange(len(units.kind)), 1 + paired)
    second = np.zeros(len(owner), np.int64)
    second[1:] = owner[1:] == owner[:-1]
    images = units.image[owner] + second
    found = ShownRows(
        shown.facts.split(units.event.astype(np.int32), units.kind),
        shown.events[units.event],
        np.ascontiguousarray(shown.side[images]),
        owner.astype(np.int32),
        np.ascontiguousarray(shown.starts[:, images]),
        np.ascontiguousarray(shown.sizes[:, images]),
        np.ascontiguousarray(shown.high[:, images]),
        shown.texts,
    )
    return found, shown.row_counts[units.event]
