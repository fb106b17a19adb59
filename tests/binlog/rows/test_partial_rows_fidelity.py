"""Tests row events that leave columns out: which values come from the other image, which are defaults, which are marked as absent, and what
stops.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.rows import decoder as rows
from sluice.cdc_engine.binlog.rows.decoder import OPERATION, RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.contracts import RowEventKind, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError
from tests.binlog.rows.event_bytes import block
from tests.binlog.rows.partial_events import Change, number, partial_event, text

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
ID = number("id", nullable=False)
TABLE = TableVersion(
    database="shop", table="t", columns=(ID, number("a", ("7",)), text("b", (None,)), number("c")), key=("id",)
)
KEYLESS = dataclasses.replace(TABLE, key=())
WHOLE = {"id": 1, "a": 2, "b": "x", "c": 3}


def decode(*changes: Change, table: TableVersion = TABLE, version: int = 2) -> list[dict[str, Any]]:
    events = [(table, change.kind, partial_event(table, [change], version)) for change in changes]
    given_block = block(events, version=version)
    return [row for batch in RowDecoder(table).chunks(given_block, np.arange(len(events))) for row in batch.to_pylist()]


def values(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("id", "a", "b", "c"))


def test_an_update_takes_from_its_before_image_what_its_after_image_lacks() -> None:
    (row,) = decode(Change(UPDATE, WHOLE, {"a": 9}))
    assert (row[OPERATION], values(row), "_sluice_present_0" in row) == (3, (1, 9, "x", 3), False)


def test_an_insert_is_whole_with_its_constant_defaults() -> None:
    (row,) = decode(Change(INSERT, after={"id": 1, "c": None}))
    assert (values(row), "_sluice_present_0" in row) == ((1, 7, None, None), False)


def test_what_neither_image_has_is_absent_and_null_is_not() -> None:
    update, delete = decode(Change(UPDATE, {"id": 1}, {"b": None}), Change(DELETE, before={"id": 1}))
    assert (values(update), update["_sluice_present_0"]) == ((1, None, None, None), 0b0101)
    assert (delete[OPERATION], delete["_sluice_present_0"], delete["_sluice_moved"]) == (4, 0b0001, False)


def test_a_row_that_moved_says_so_after_the_key_it_had() -> None:
    before, after = decode(Change(UPDATE, {"id": 1}, {"id": 2, "a": 5}))
    assert (before[OPERATION], before["id"], before["_sluice_moved"]) == (2, 1, False)
    assert (after[OPERATION], after["id"], after["_sluice_moved"]) == (3, 2, True)


def test_images_of_all_kinds_in_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of all kinds are also decoded correctly if a chunk ends between or inside them."""
    changes = [Change(INSERT, after=WHOLE), Change(UPDATE, {"id": 1}, {"c": 4}), Change(UPDATE, WHOLE, WHOLE)]
    whole = decode(*changes)
    monkeypatch.setattr(rows, "CHUNK_BYTES_MAX", 1)
    assert [values(row) for row in decode(*changes)] == [values(row) for row in whole]
    assert [values(row) for row in whole] == [(1, 2, "x", 3), (1, None, None, 4), (1, 2, "x", 3)]


@pytest.mark.parametrize(
    ("change", "table", "version", "words"),
    [
        (Change(UPDATE, {"a": 1}, {"b": "x"}), TABLE, 2, "the key column id"),
        (Change(DELETE, {"a": 1}), TABLE, 2, "the key column id"),
        (Change(INSERT, after={"id": 1}), TABLE, 2, "without the column c, and the schema history has no"),
        (Change(INSERT, after={}), TABLE, 2, "without any column"),
        (Change(UPDATE, {"id": 1}, {"a": 1}), KEYLESS, 2, "the column a out, and the table has no primary key"),
        (Change(UPDATE, {"id": 1}, {"id": 1, "a": 1}), TABLE, 1, "REPLACE would set its default"),
    ],
)
def test_a_value_that_cannot_be_known_stops_the_table(
    change: Change, table: TableVersion, version: int, words: str
) -> None:
    with pytest.raises(TableStoppedError, match=rf"IMAGE_NOT_FULL.*binlog.000002:4.*{words}"):
        decode(change, table=table, version=version)


@pytest.mark.found
def test_the_message_about_a_possible_replace_names_an_omitted_column() -> None:
    """Defect 74: the message named the last column of the table, also if the event had this column."""
    change = Change(UPDATE, {"id": 1}, {"id": 1, "a": 1, "c": 3})
    with pytest.raises(TableStoppedError, match="leaves the column b out of both images"):
        decode(change, table=TABLE, version=1)


@pytest.mark.parametrize("generated", ["virtual", "unknown"])
def test_a_virtual_column_that_is_left_out_stops_the_table_where_servers_do_so_though_it_changed(
    generated: str,
) -> None:
    computed = dataclasses.replace(number("w"), generated=generated)
    table = dataclasses.replace(TABLE, columns=(*TABLE.columns, computed))
    change = Change(UPDATE, {**WHOLE, "w": 1}, {"a": 9})
    with pytest.raises(TableStoppedError, match=r"the column w, which is or may be a virtual column"):
        decode(change, table=table, version=1)
    assert decode(change, table=table)[0]["w"] == 1


def test_an_update_of_version_1_that_does_not_name_the_key_or_changes_it_is_followed() -> None:
    found = decode(Change(UPDATE, {"id": 1}, {"a": 1}), Change(UPDATE, {"id": 1}, {"id": 2}), version=1)
    assert [row[OPERATION] for row in found] == [3, 2, 3]


def test_a_default_that_is_no_value_of_its_type_stops_the_table() -> None:
    table = dataclasses.replace(TABLE, columns=(ID, number("a", ("seven",))))
    with pytest.raises(TableStoppedError, match="a row image omits column a, and the default 'seven' of the column"):
        decode(Change(INSERT, after={"id": 1}), table=table)


CHANGES = st.sampled_from(
    [Change(UPDATE, {"id": 1}, {"b": "abc"}), Change(UPDATE, WHOLE, {"id": 2}), Change(DELETE, {"id": 1, "b": "y"})]
)


@pytest.mark.found
def test_an_omitted_default_that_is_no_text_in_the_charset_of_conf_stops_the_table() -> None:
    """Defect 1250: such a default became unknown after the event was checked, and the engine failed with an IndexError."""
    declared = dataclasses.replace(text("b", ("é",)), charset="latin1")
    table = dataclasses.replace(TABLE, columns=(ID, declared))
    events = block([(table, INSERT, partial_event(table, [Change(INSERT, after={"id": 1})]))], version=2)
    decoder = RowDecoder(table, policy=ValuePolicy(charsets={"b": "utf8mb4"}))
    with pytest.raises(TableStoppedError, match="without the column b, and the schema history has no constant default"):
        list(decoder.chunks(events, np.arange(1)))


@given(CHANGES, st.data())
def test_damaged_events_are_errors_or_rows_and_nothing_else(change: Change, data: st.DataObject) -> None:
    """The event is cut anywhere after its header, or one byte of it is changed."""
    whole = partial_event(TABLE, [change])
    index = data.draw(st.integers(19, len(whole) - 1))
    truncated = data.draw(st.booleans())
    damaged = (
        whole[:index] if truncated else whole[:index] + bytes([data.draw(st.integers(0, 255))]) + whole[index + 1 :]
    )
    given_block = block([(TABLE, change.kind, damaged)])
    try:
        found = sum(batch.num_rows for batch in RowDecoder(TABLE).chunks(given_block, np.arange(1)))
    except (BinlogFormatError, TableStoppedError):
        return
    assert found <= len(damaged)
