"""Encodes a consumer's position as a text, which a broker stores in the same transaction as a batch's messages. After a crash, decodes the
text and decides where the consumer continues. Does no I/O. Used by `consumers` and `group.committed`.

    batch ─▶ messages + text of the batch's end ─▶ one transaction of the broker ─▶ ack ─▶ cursor in the ledger
                                                            │ crash before the ledger has the cursor
                                                            └──▶ text ─▶ the stream continues after the batch

The text contains the whole position. A number of messages would not be enough, because batches after a restart may have other sizes.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Callable
from typing import Any

import structlog

from sluice.cdc_engine.errors import PublishError
from sluice.cdc_engine.gtid import has_executed, same_executed
from sluice.cdc_engine.instance.consumers.consumer_stream import StreamPosition
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.window.positions import WindowPosition, key_of

FORMAT = 1
CONSUMER = "consumer"
WAY_OUT = (
    "set another transactional_id for this broker in conf/; the consumer then continues at the cursor in the "
    "ledger, and may repeat messages"
)

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True)
class Counting:
    """The values on which the meaning of a consumer's position depends: the destination's highest epoch, and the filter of captured tables.
    A position within a transaction counts row events of captured tables, so with another filter the same count means another position.
    """

    epoch: int
    tables: str


class StreamPositionCodec:
    """Encodes the positions of a destination's consumer for a broker, and compares committed positions with the acked one. Implements
    `server.consumer.PositionCodec`. `identity` returns the consumer's identity. `counting` returns the current epoch and table filter.
    """

    def __init__(self, identity: Callable[[], str], counting: Callable[[], Counting]) -> None:
        self._identity, self._counting = identity, counting

    def text(self, position: StreamPosition) -> str:
        return packed(self._identity(), stream_record(position, self._counting()))

    def later(self, acked: StreamPosition, text: str) -> StreamPosition | None:
        record = unpacked(text, self._identity())
        return later_of(acked, record, self._counting()) if record is not None else None


def packed(identity: str, record: dict[str, Any]) -> str:
    """Encodes a record as a text for a broker. `identity` names the consumer to which the position in the record belongs."""
    text = json.dumps({"format": FORMAT, CONSUMER: identity, **record}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str, identity: str) -> dict[str, Any] | None:
    """Decodes a text that `packed` encoded. Returns None if a consumer with another identity than `identity` wrote the text. Raises
    PublishError if another version of Sluice wrote the text.
    """
    try:
        record = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        if record["format"] != FORMAT:
            raise ValueError(f"the record has format {record['format']!r}")
        owner = record[CONSUMER]
    except (ValueError, zlib.error, KeyError, TypeError, RecursionError) as error:
        raise _of_another_version(error) from None
    if owner != identity:
        # Ignores the text, because an earlier consumer wrote it, before an operator forgot that consumer or created the ledger again. The
        # new consumer sends everything after its own cursor.
        log.warning("committed_position_of_another_consumer", consumer=identity, committed_by=owner)
        return None
    return dict(record)


def _of_another_version(error: Exception) -> PublishError:
    said = f"the record has no {error}" if isinstance(error, KeyError) else error
    return PublishError(
        f"the broker has a committed position that this version of Sluice did not write ({said}): {WAY_OUT}"
    )


def stream_record(position: StreamPosition, counting: Counting) -> dict[str, Any]:
    """Converts a position in the stream of one destination to the record that `packed` encodes. `counting` has the present epoch and table
    filter of the destination.
    """
    at = position.window_position
    within = {"events": at.events, "begun": at.begun, "last": at.last, "tables": zlib.crc32(counting.tables.encode())}
    return {"position": at.position.to_json(), **(within if at.events else {}), "state": position.state}


def later_of(acked: StreamPosition, record: dict[str, Any], counting: Counting) -> StreamPosition | None:
    """Returns the committed position in a broker's record if it is after the acked position, otherwise None. `counting` has the present
    epoch and table filter of the destination. Raises PublishError if the two positions cannot be compared.
    """
    try:
        committed = _position_of(record, counting)
    except (KeyError, TypeError, ValueError) as error:
        raise _of_another_version(error) from None
    _refuse_incomparable(acked.position, committed.position, counting.epoch)
    return committed if _is_later(committed, acked) else None


def _is_later(committed: StreamPosition, acked: StreamPosition) -> bool:
    """Returns whether the committed position is after the acked one. Compares epochs and order keys.

    After a failover by GTID, compares the executed sets instead: the acked position on the new server has the higher epoch, but may be
    before the position that was committed on the old server.
    """
    ours, theirs = acked.position, committed.position
    if theirs.epoch < ours.epoch and has_executed(theirs.gtid_set, ours.gtid_set):
        return not same_executed(theirs.gtid_set, ours.gtid_set)
    return _key(committed) > _key(acked)


def _position_of(record: dict[str, Any], counting: Counting) -> StreamPosition:
    """Returns the position in a broker's record. If conf/ captured other tables when the record was written, the record's number of row
    events does not fit any more. In this case, returns the position before the transaction that was partly sent, so that the transaction's
    first messages are sent again.
    """
    position = Position.from_json(record["position"])
    if "events" in record and record["tables"] != zlib.crc32(counting.tables.encode()):
        return StreamPosition(WindowPosition(position))
    epoch, file, offset = record.get("begun") or (0, 0, 0)
    begun = (epoch, file, offset) if record.get("begun") else None
    shown, at, left_out, frame_at, frames_left_out = record["state"]
    at_events = WindowPosition(position, record.get("events", 0), begun, record.get("last", 0))
    return StreamPosition(at_events, (shown, at, left_out, frame_at, frames_left_out))


def _refuse_incomparable(acked: Position, committed: Position, epoch: int) -> None:
    if committed.epoch > epoch:
        raise PublishError(
            f"the broker has committed up to {committed}, but the ledger knows no epoch above {epoch}: an "
            "older ledger was restored, or another installation uses this transactional_id. Correct the "
            f"cause, or {WAY_OUT}"
        )
    if committed.epoch == acked.epoch and not committed.counts_as(acked):
        raise PublishError(
            f"the broker has committed up to {committed} of the server {committed.server_uuid}, and the cursor {acked} is of the server "
            f"{acked.server_uuid}; positions of two servers in one epoch cannot be compared: {WAY_OUT}"
        )


def _key(position: StreamPosition) -> tuple[int, int, int, int]:
    return *key_of(position.position), position.window_position.events
