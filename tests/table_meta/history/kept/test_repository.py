"""Tests the file of the schema history: truncated at every byte, damaged, and on a disk without space."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind, SchemaRepository


def at(offset: int) -> Position:
    return Position(epoch=1, file="binlog.000001", offset=offset * 16, gtid_set="a:1-5", server_uuid="u", time_us=7)


def record(offset: int, kind: RecordKind = RecordKind.DATABASE) -> HistoryRecord:
    return HistoryRecord(
        kind=kind,
        position=at(offset),
        database=f"d{offset}",
        content={} if kind is RecordKind.REWIND else {"charset": "ä"},
    )


def test_a_file_torn_at_any_byte_loads_the_records_before_and_continues(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    records = [record(offset) for offset in range(3)]
    for one in records:
        SchemaRepository(whole).append([one])
    content = whole.read_bytes()
    ends = [index + 1 for index, octet in enumerate(content) if octet == ord("\n")]
    assert len(ends) == len(records) + 1
    for size in range(len(content) + 1):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(content[:size])
        expected = records[: max(sum(end <= size for end in ends) - 1, 0)]
        assert SchemaRepository(torn).load() == expected
        SchemaRepository(torn).append([record(9)])
        assert SchemaRepository(torn).load() == [*expected, record(9)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_a_rewind_takes_back_what_is_above_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, int]]
) -> None:
    repository = SchemaRepository(tmp_path_factory.mktemp("rewind") / "schema.jsonl")
    model: list[HistoryRecord] = []
    for rewinds, offset in steps:
        repository.append([record(offset, RecordKind.REWIND if rewinds else RecordKind.DATABASE)])
        model = (
            [one for one in model if one.position.offset <= at(offset).offset] if rewinds else [*model, record(offset)]
        )
    assert repository.load() == model


@pytest.mark.parametrize(
    "content",
    [b"{}\n", b"not json\n", b'{"format": 2, "what": "schema history"}\n'],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "schema.jsonl").write_bytes(content)
    with pytest.raises(MetaError, match="not a schema history"):
        SchemaRepository(tmp_path / "schema.jsonl").load()


def test_damage_before_the_last_line_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "schema.jsonl"
    SchemaRepository(path).append([record(1), record(2), record(3)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{garbage}\n", lines[3]]))
    with pytest.raises(MetaError, match="line 3"):
        SchemaRepository(path).load()


def test_a_record_of_another_shape_is_refused_when_the_history_loads(tmp_path: Path) -> None:
    path = tmp_path / "schema.jsonl"
    SchemaRepository(path).append(
        [HistoryRecord(kind=RecordKind.DDL, position=at(1), database="d", table="t", content={"columns": 5})]
    )
    with pytest.raises(MetaError, match="shape"):
        TableHistory(path, lambda *_: True)


def test_an_incomplete_write_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "schema.jsonl"
    SchemaRepository(path).append([record(1)])
    real_write = os.write

    def short_then_full(descriptor: int, content: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real_write(descriptor, content[:10])

    def full(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", short_then_full)
    with pytest.raises(MetaError, match="No space left"):
        SchemaRepository(path).append([record(2)])
    monkeypatch.setattr(os, "write", real_write)
    SchemaRepository(path).append([record(3)])
    assert SchemaRepository(path).load() == [record(1), record(3)]
