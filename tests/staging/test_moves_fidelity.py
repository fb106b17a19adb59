"""Tests staged rows that lack columns and whose keys change: the staged columns of each image are enough to find its row in the lake.

The tests simulate the source table with a dictionary, and compute the end state from the staged images alone, as
`spark_jobs/merging/fold_partial.py` does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.rows.decoder import OPERATION, RowDecoder
from sluice.cdc_engine.binlog.rows.fingerprints import fingerprints
from sluice.cdc_engine.contracts import Operation, RowEventKind, TableVersion
from sluice.cdc_engine.staging import segment_writer
from sluice.cdc_engine.staging.moves import BIRTH, Moves
from sluice.cdc_engine.staging.segment_writer import ROW, SegmentWriter
from tests.binlog.rows.event_bytes import block
from tests.binlog.rows.partial_events import Change, number, partial_event, text

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
TABLE = TableVersion(
    database="shop",
    table="t",
    columns=(text("id", nullable=False), number("a"), number("b")),
    key=("id",),
    version="1",
)
Row = dict[str, Any]
KEYS = st.sampled_from(["", "k", "l", "key of more than eight bytes", "key of more than eight bytes too"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "update", "move", "move", "move", "delete", "swap"]),
        *(KEYS, KEYS, st.sampled_from(["a", "b"]), st.booleans()),
    ),
    max_size=40,
)


@dataclasses.dataclass
class Source:
    """A simulated MySQL table, and the row events of its changes. If `whole` is set, the images of an event have all columns."""

    rows: dict[str, Row]
    events: list[Change] = dataclasses.field(default_factory=list)

    def step(self, kind: str, key: str, other: str, column: str, whole: bool) -> None:
        there, free = key in self.rows, other not in self.rows
        if kind == "insert" and not there:
            self.rows[key] = {"id": key, "a": len(self.events), "b": -len(self.events)}
            self.events.append(Change(INSERT, after=self.rows[key]))
        elif kind == "delete" and there:
            row = self.rows.pop(key)
            self.events.append(Change(DELETE, before=row if whole else {"id": key}))
        elif kind == "update" and there:
            self._update(key, key, {column: len(self.events)}, whole=whole)
        elif kind == "move" and there and free:
            self._update(key, other, {column: len(self.events)} if whole else {}, whole=whole)
        elif kind == "swap" and there and not free and key != other:
            for old, new in ((key, "between"), (other, key), ("between", other)):
                self._update(old, new, {}, whole=False)

    def _update(self, key: str, other: str, values: Row, *, whole: bool) -> None:
        before = self.rows.pop(key)
        after = {**before, "id": other, **values}
        self.rows[other] = after
        moved = {"id": other} if key != other else {}
        change = Change(UPDATE, before, after) if whole else Change(UPDATE, {"id": key}, {**moved, **values})
        if change.after:
            self.events.append(change)


def staged(events: list[Change], folder: Path) -> tuple[list[Row], int]:
    """Returns the rows of the staged file, and how many of its images changed a key and lack columns."""
    given_block = block([(TABLE, event.kind, partial_event(TABLE, [event])) for event in events])
    writer = SegmentWriter(folder / "t.parquet", RowDecoder(TABLE))
    for batch in writer.decoder.chunks(given_block, np.arange(len(events))):
        writer.add(batch)
    segment = writer.finish()
    return pq.read_table(folder / segment.file).to_pylist(), segment.moves


def folded(images: list[Row], lake: dict[str, Row]) -> dict[str, Row]:
    """Applies the rule of `fold_partial` in Python."""
    names = [column.name for column in TABLE.columns]
    by_key: dict[str, Row] = {}
    lives: dict[tuple[str, int], Row] = {}
    for image in images:
        born_at = image.get(BIRTH)
        origin = image["id"] if born_at is None else image["_sluice_origin_0"]
        known = lives.setdefault((origin, born_at or 0), {})
        bits = image.get("_sluice_present_0", 0b111)
        known |= {name: image[name] for index, name in enumerate(names) if bits >> index & 1}
        leaves = image[OPERATION] in {Operation.INSERT, Operation.UPDATE_AFTER}
        kept = {} if born_at else lake.get(origin, {})
        by_key[image["id"]] = {**kept, **known, "id": image["id"]} if leaves else {}
    return {key: row for key, row in {**lake, **by_key}.items() if row}


@settings(deadline=None, max_examples=200)
@given(STEPS, st.sets(KEYS), st.sampled_from([1, 60, 1 << 20]))
def test_staged_images_of_rows_that_move_identify_their_rows_fidelity(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], there: set[str], chunk_bytes: int
) -> None:
    lake = {key: {"id": key, "a": 100 + index, "b": 200 + index} for index, key in enumerate(sorted(there))}
    source = Source(dict(lake))
    for step in steps:
        source.step(*step)
    if not source.events:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sluice.cdc_engine.binlog.rows.decoder.CHUNK_BYTES_MAX", chunk_bytes)
        patched.setattr(segment_writer, "ROW_GROUP_ROWS", 3)
        images, _ = staged(source.events, tmp_path_factory.mktemp("moves"))
    assert [image[ROW] for image in images] == list(range(1, len(images) + 1))
    assert folded(images, lake) == source.rows


def test_rows_before_the_first_that_lacks_columns_share_its_segment_fidelity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 2)
    monkeypatch.setattr("sluice.cdc_engine.binlog.rows.decoder.CHUNK_BYTES_MAX", 1)
    whole = [Change(INSERT, after={"id": str(index), "a": index, "b": index}) for index in range(5)]
    images, moves = staged([*whole, Change(UPDATE, {"id": "3"}, {"a": 9}), *whole[:1]], tmp_path)
    assert [image["_sluice_present_0"] for image in images] == [0b111] * 5 + [0b011, 0b111]
    assert ([image["a"] for image in images], moves) == ([0, 1, 2, 3, 4, 9, 0], 0)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_a_million_keys_that_move_are_followed_fidelity() -> None:
    """Each row gets the key that the previous row has just left. So every key is left and used again, and the tables of keys in memory are
    enlarged.
    """
    schema = RowDecoder(TABLE).partial_schema
    moves, count, first = Moves(schema, TABLE.key), 1 << 14, 1
    last: Any = None
    for begin in range(0, 1_000_000, count // 2):
        ids = np.repeat(np.arange(begin, begin + count // 2), 2)
        ids[1::2] -= 1
        columns: list[Any] = [np.tile([2, 3], count // 2).astype(np.int8), np.zeros(count, np.int64)]
        batch = pa.RecordBatch.from_arrays(
            [
                *(pa.array(column) for column in columns),
                pa.array(np.zeros(count, np.int64), pa.timestamp("us", "UTC")),
                pa.array(ids).cast(pa.string()),
                *(pa.nulls(count, pa.int32()) for _ in range(2)),
                pa.array(np.ones(count, np.int64)),
                pa.array(np.tile([False, True], count // 2)),
            ],
            schema=schema,
        )
        last = moves.with_identity(batch, first)
        first += count
    assert (moves.moves, last["_sluice_birth"].to_pylist()[-2:]) == (first // 2, [None, 0])
    assert last["_sluice_origin_0"].to_pylist()[-2:] == [None, last["id"].to_pylist()[-2]]


VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1, -1, None, 1 << 62],
    pa.string(): ["", "a", "b", None, "12345678", "123456789", "\0"],
    pa.binary(): [b"", b"\0", b"\0\0", None],
    pa.decimal128(20, 2): [0, 1, -1, None],
    pa.float64(): [0.0, 1.5, None],
    pa.date32(): [0, 1, None],
    pa.timestamp("us"): [0, 1, None],
    pa.bool_(): [True, False, None],
}


@pytest.mark.parametrize("of_type", VALUES, ids=str)
def test_fingerprints_are_equal_where_the_values_are_fidelity(of_type: pa.DataType) -> None:
    values = VALUES[of_type]
    column = pa.array([*values, *values], of_type)
    found = [tuple(sums) for sums in fingerprints([column, column]).T.tolist()]
    assert found[: len(values)] == found[len(values) :]
    assert len(set(found)) == len(values)
    assert [tuple(sums) for sums in fingerprints([column[1:], column[1:]]).T.tolist()] == found[1:]


def test_fingerprints_of_several_columns_depend_on_which_has_what_fidelity() -> None:
    one, other = pa.array(["a", "ab", "a"]), pa.array(["bc", "c", "bc"])
    found = fingerprints([one, other]).T.tolist()
    assert found[0] == found[2] != found[1]
    assert found[0] not in fingerprints([other, one]).T.tolist()
    assert fingerprints([pa.array([0.0])]).tolist() == fingerprints([pa.array([-0.0])]).tolist()
