"""A block as a record of the event files and back: a small JSON text for what is one a block, and its arrays as the bytes they are.

Used by `log` and `reader`. Table versions and sources of GTIDs, which many blocks share, have records of their own (`names`).
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cdc_engine.binlog.block import EVENT_ARRAYS, TRANSACTION_ARRAYS
from cdc_engine.contracts import (
    FRAME,
    Alteration,
    AlterationKind,
    Block,
    Cascade,
    Column,
    LoggedStatement,
    StatementSession,
    TableChange,
    TableChangeKind,
    TableVersion,
)
from cdc_engine.store.ring import Mark

ARRAYS: Mapping[str, npt.DTypeLike] = {
    "buffer": np.uint8,
    **EVENT_ARRAYS,
    **TRANSACTION_ARRAYS,
    "open_frame": FRAME,
}
ONE_A_BLOCK = ("epoch", "file", "server_uuid", "start_gtid_set", "file_created")


@dataclasses.dataclass(frozen=True)
class Names:
    """What blocks refer to by index; each later one of a segment goes on where the one before it ends, or begins anew."""

    tables: tuple[TableVersion, ...] = ()
    gtid_sources: tuple[str, ...] = ()


NO_NAMES = Names()


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a block adds to the marks: `whole` up to its last transaction's end, `all` with what is open after that."""

    whole: Mark
    all: Mark

    @classmethod
    def of(cls, block: Block) -> Counts:
        """As `timeline.entry_in_memory` counts."""
        transactions = block.transaction_count
        within = int(bool(block.changes) and not transactions)
        ended = int(block.transaction_events[-1]) if transactions else 0
        whole = Mark(transactions, ended, int(block.event_length[:ended].sum()))
        return cls(whole, Mark(transactions, block.event_count + within, block.byte_count))


def arrays_of(block: Block) -> list[npt.NDArray[Any]]:
    """Contiguous, of the types and in the order of ARRAYS."""
    return [np.ascontiguousarray(getattr(block, name), dtype) for name, dtype in ARRAYS.items()]


def described(block: Block) -> dict[str, Any]:
    """All of a block but its arrays and names. `end`: offset after its last transaction, -1 without one."""
    counts = Counts.of(block)
    record: dict[str, Any] = {name: getattr(block, name) for name in ONE_A_BLOCK}
    record["sizes"] = [len(block.buffer), block.event_count, block.transaction_count, len(block.open_frame)]
    record["end"] = int(block.transaction_end[-1]) if block.transaction_count else -1
    record["whole"], record["all"] = dataclasses.astuple(counts.whole), dataclasses.astuple(counts.all)
    if block.changes:
        record["changes"] = [dataclasses.asdict(change) for change in block.changes]
    if block.statement is not None:
        record["statement"] = dataclasses.asdict(block.statement)
    return record


def empty_arrays(record: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Arrays to be filled with a described block's bytes."""
    buffer_bytes, events, transactions, frames = record["sizes"]
    lengths = {
        "buffer": buffer_bytes,
        **dict.fromkeys(EVENT_ARRAYS, events),
        **dict.fromkeys(TRANSACTION_ARRAYS, transactions),
        "open_frame": frames,
    }
    return {name: np.empty(lengths[name], dtype) for name, dtype in ARRAYS.items()}


def block_of(record: Mapping[str, Any], arrays: Mapping[str, Any], names: Names) -> Block:
    """The block that was described."""
    one: dict[str, Any] = {name: record[name] for name in ONE_A_BLOCK}
    return Block(
        **one,
        **arrays,
        tables=names.tables,
        gtid_sources=names.gtid_sources,
        changes=tuple(_change(each) for each in record.get("changes", ())),
        statement=_statement(record["statement"]) if "statement" in record else None,
    )


def text_of(record: Mapping[str, Any]) -> bytes:
    """As JSON in ASCII: a name that is no valid UTF-8 in the source comes back as it was."""
    return json.dumps(record, default=_plain, separators=(",", ":")).encode("ascii")


def names_record(names: Names, before: Names) -> dict[str, Any]:
    """What is new in `names`; all of it where it does not go on where `before` ends."""
    tables, sources = _kept(names.tables, before.tables), _kept(names.gtid_sources, before.gtid_sources)
    return {
        "tables_kept": tables,
        "tables": [dataclasses.asdict(each) for each in names.tables[tables:]],
        "sources_kept": sources,
        "sources": names.gtid_sources[sources:],
    }


def names_of(record: Mapping[str, Any], before: Names) -> Names:
    """Inverse of `names_record`."""
    tables = (*before.tables[: record["tables_kept"]], *(_table(each) for each in record["tables"]))
    return Names(tables, (*before.gtid_sources[: record["sources_kept"]], *record["sources"]))


def _kept(now: Sequence[object], before: Sequence[object]) -> int:
    """By identity: the parser hands on one growing list, whose members stay the same objects."""
    same = len(now) >= len(before) and all(one is other for one, other in zip(now, before, strict=False))
    return len(before) if same else 0


def _plain(value: object) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is no part of a block")


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
