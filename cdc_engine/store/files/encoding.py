"""Encodes and decodes a block as a record of the event files: JSON for values that occur once per block, and raw bytes for its arrays.

Used by `log` and `reader`. Many blocks share table versions and GTID sources, so table versions and GTID sources are in separate records
(`Names`).
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.batch_manifest.values import Alteration, AlterationKind, Cascade
from sluice.cdc_engine.binlog.block import EVENT_ARRAYS, QUERY_ARRAYS, TRANSACTION_ARRAYS
from sluice.cdc_engine.contracts import (
    FRAME,
    FRAME_FIELDS,
    NO_GTID,
    Block,
    Column,
    Frames,
    LoggedStatement,
    StatementSession,
    TableChange,
    TableChangeKind,
    TableVersion,
)
from sluice.cdc_engine.store.files.mark import Mark

ARRAYS: Mapping[str, npt.DTypeLike] = {
    "buffer": np.uint8,
    **EVENT_ARRAYS,
    **TRANSACTION_ARRAYS,
    "open_frame": FRAME,
    **QUERY_ARRAYS,
}
# The number of fields of a transaction's frame (`contracts.FRAME`) in the first format, which had no logical clock. A record without
# "frame_fields" has frames of the first format.
FIRST_FRAME_FIELDS = 9
FRAMES = [name for name, dtype in ARRAYS.items() if dtype is FRAME]
ONE_A_BLOCK = ("epoch", "file", "server_uuid", "start_gtid_set", "file_created")


@dataclasses.dataclass(frozen=True)
class Names:
    """The table versions and GTID sources to which the blocks of a segment refer by index. If a block has other lists than the previous
    block, a record with the added entries is written before the block. If a list does not extend the previous list, the record has the
    whole list.
    """

    tables: Sequence[TableVersion] = ()
    gtid_sources: Sequence[str] = ()


NO_NAMES = Names()


@dataclasses.dataclass(frozen=True)
class Counts:
    """How many transactions, events and bytes a block adds to a `Mark`. `whole` counts up to the end of the block's last complete
    transaction. `all` also counts the open transaction at the block's end.
    """

    whole: Mark
    all: Mark

    @classmethod
    def of(cls, block: Block) -> Counts:
        """Counts the transactions that end in a block, the block's row events, and their bytes. If the block has table changes and no
        transaction ends in it, the field `all` counts one row event more. Otherwise the marks before and after a block without row events
        would be equal, and the log would not notice that a transaction is open.
        """
        transactions = block.transaction_count
        within = int(bool(block.changes) and not transactions)
        ended = int(block.transaction_events[-1]) if transactions else 0
        whole = Mark(transactions, ended, int(block.event_bytes[:ended].sum()))
        return cls(whole, Mark(transactions, block.event_count + within, block.byte_count))


def arrays_of(block: Block) -> list[npt.NDArray[Any]]:
    """Returns the block's arrays in the order of ARRAYS, contiguous and with the types in ARRAYS."""
    return [np.ascontiguousarray(getattr(block, name), dtype) for name, dtype in ARRAYS.items()]


def described(block: Block) -> dict[str, Any]:
    """Returns the values that a block's JSON contains: all values except the arrays, the table versions and the GTID sources. The value
    `end` is the offset after the last transaction that ends in the block, or -1 if no transaction ends in the block.
    """
    counts = Counts.of(block)
    record: dict[str, Any] = {name: getattr(block, name) for name in ONE_A_BLOCK}
    record["sizes"] = [len(block.buffer), block.event_count, block.transaction_count, len(block.open_frame)]
    record["queries"] = len(block.query_event)
    record["frame_fields"], record["open_gtid"] = len(FRAME_FIELDS), block.open_gtid
    record["end"] = int(block.transaction_end[-1]) if block.transaction_count else -1
    record["whole"], record["all"] = dataclasses.astuple(counts.whole), dataclasses.astuple(counts.all)
    if block.changes:
        record["changes"] = [dataclasses.asdict(change) for change in block.changes]
    if block.statement is not None:
        record["statement"] = dataclasses.asdict(block.statement)
    return record


def empty_arrays(record: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Allocates the arrays of a block with the sizes and types that its JSON states, for `read_arrays` to fill. `record` is the result of
    `described`.
    """
    buffer_bytes, events, transactions, frames = record["sizes"]
    lengths = {
        "buffer": buffer_bytes,
        **dict.fromkeys(EVENT_ARRAYS, events),
        **dict.fromkeys(TRANSACTION_ARRAYS, transactions),
        "open_frame": frames,
        **dict.fromkeys(QUERY_ARRAYS, record.get("queries", 0)),
    }
    fields = record.get("frame_fields", FIRST_FRAME_FIELDS)
    types = {**ARRAYS, **dict.fromkeys(FRAMES, np.dtype([(name, np.int64) for name in FRAME_FIELDS[:fields]]))}
    return {name: np.empty(lengths[name], dtype) for name, dtype in types.items()}


def block_of(record: Mapping[str, Any], arrays: Mapping[str, Any], names: Names) -> Block:
    """Makes a block. `record` has the values that `described` returned, `arrays` the block's arrays, and `names` its table versions and
    GTID sources.
    """
    one: dict[str, Any] = {name: record[name] for name in ONE_A_BLOCK}
    source, number = record.get("open_gtid", NO_GTID)
    whole: dict[str, Any] = {**arrays, **{name: _whole_frames(arrays[name]) for name in FRAMES}}
    return Block(
        **one,
        **whole,
        open_gtid=(source, number),
        tables=names.tables,
        gtid_sources=names.gtid_sources,
        changes=tuple(_change(each) for each in record.get("changes", ())),
        statement=_statement(record["statement"]) if "statement" in record else None,
    )


def _whole_frames(frames: Frames) -> Frames:
    """Returns the frames of transactions (facts about their first and last events) with all fields of `contracts.FRAME`. A field is -1 if
    the version of Sluice that wrote the frames did not have it.
    """
    if frames.dtype == FRAME:
        return frames
    whole = np.full(len(frames), -1, np.int64).astype(FRAME)
    for name in frames.dtype.names or ():
        whole[name] = frames[name]
    return whole


def text_of(record: Mapping[str, Any]) -> bytes:
    """Returns a record as JSON in ASCII. A name whose bytes are not valid UTF-8 has lone surrogates ("surrogateescape"). JSON escapes
    preserve them, and encoding them as UTF-8 would raise an error.
    """
    return json.dumps(record, default=_plain, separators=(",", ":")).encode("ascii")


def names_record(names: Names, before: Names) -> dict[str, Any]:
    """Returns a record with the entries that `names` has in addition to `before`. If `names` does not extend `before`, the record has all
    entries.
    """
    tables, sources = _kept(names.tables, before.tables), _kept(names.gtid_sources, before.gtid_sources)
    return {
        "tables_kept": tables,
        "tables": [dataclasses.asdict(each) for each in names.tables[tables:]],
        "sources_kept": sources,
        "sources": names.gtid_sources[sources:],
    }


def names_of(record: Mapping[str, Any], before: Names) -> Names:
    """Returns the names that the blocks after a record use. `record` is a result of `names_record`, and `before` are the names that the
    blocks before the record use.
    """
    tables = (*before.tables[: record["tables_kept"]], *(_table(each) for each in record["tables"]))
    return Names(tables, (*before.gtid_sources[: record["sources_kept"]], *record["sources"]))


def _kept(now: Sequence[object], before: Sequence[object]) -> int:
    """Returns the number of entries in `before` if `now` begins with all of them, otherwise 0. Compares entries by identity, because the
    blocks of one stream share these objects, and the parser only appends new objects to its lists.
    """
    same = len(now) >= len(before) and all(one is other for one, other in zip(now, before, strict=False))
    return len(before) if same else 0


def _plain(value: object) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} cannot be written to the JSON of a block")


def _tuples(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {**record, **{name: tuple(record[name]) for name in names}}


def _table(record: Mapping[str, Any]) -> TableVersion:
    columns = tuple(Column(**_tuples(each, "labels", "default")) for each in record["columns"])
    pairs = ("parent", "child", "columns", "referenced", "key")
    cascades = tuple(Cascade(**_tuples(each, *pairs)) for each in record["cascades"])
    return TableVersion(**{**_tuples(record, "key"), "columns": columns, "cascades": cascades})


def _change(record: Mapping[str, Any]) -> TableChange:
    alterations = tuple(Alteration(**{**each, "kind": AlterationKind(each["kind"])}) for each in record["alterations"])
    schema = _table(record["schema"]) if record["schema"] is not None else None
    fills = tuple((column, value) for column, value in record["fills"])
    kind = TableChangeKind(record["kind"])
    return TableChange(**{**record, "kind": kind, "schema": schema, "fills": fills, "alterations": alterations})


def _statement(record: Mapping[str, Any]) -> LoggedStatement:
    return LoggedStatement(**{**record, "session": StatementSession(**record["session"])})
