"""Tests every repository of the schema history, in a file and in record stores: the order of records, rewinds, replaced records, and the
compaction of a history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import ConfigurationError, MetaError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.memory import MemoryRecordStore
from sluice.cdc_engine.records.sql import SqlRecordStore
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind, Repository, SchemaRepository
from sluice.cdc_engine.table_meta.history.kept.shared_repository import SharedRepository
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts
from sluice.console.toolchain.database.server import DatabaseServer

Open = Callable[[], Repository]


@pytest.fixture(params=["file", "sqlite", "mysql", "shared"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same repository each time."""
    if request.param == "file":
        yield lambda: SchemaRepository(tmp_path / "schema.jsonl")
    elif request.param == "shared":
        documents = MemoryRecordStore()
        yield lambda: SharedRepository(documents, token=1)
    elif request.param == "sqlite":
        yield lambda: SharedRepository(SqlRecordStore(f"sqlite:///{tmp_path}/meta.db", "shop"), token=1)
    else:
        server: DatabaseServer = request.getfixturevalue("mysql80")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE meta_repository")
            try:
                url = f"mysql+pymysql://root@127.0.0.1:{server.port}/meta_repository"
                yield lambda: SharedRepository(SqlRecordStore(url, "shop"), token=1)
            finally:
                cursor.execute("DROP DATABASE meta_repository")


def at(offset: int) -> Position:
    return Position(epoch=1, file="binlog.000001", offset=offset * 16, gtid_set="a:1-5", server_uuid="u", time_us=7)


def record(offset: int, kind: RecordKind = RecordKind.DATABASE, text: str = "ä漢") -> HistoryRecord:
    return HistoryRecord(kind=kind, position=at(offset), database=f"d{offset}", content={"charset": text})


@pytest.mark.servers
def test_ddl_records_are_read_in_the_order_they_were_written(opened: Open) -> None:
    assert opened().load() == []
    first = opened()
    first.append([record(1), record(2)])
    first.append([])
    first.append([record(2), record(9, text="x" * 100_000)])
    assert opened().load() == [record(1), record(2), record(2), record(9, text="x" * 100_000)]


@pytest.mark.servers
def test_ddl_a_rewind_takes_back_what_is_above_it(opened: Open) -> None:
    repository = opened()
    repository.append([record(1), record(5), record(7)])
    repository.append([HistoryRecord(kind=RecordKind.REWIND, position=at(5))])
    repository.append([record(6)])
    assert opened().load() == [record(1), record(5), record(6)]


@pytest.mark.servers
def test_ddl_replaced_records_are_the_only_ones(opened: Open) -> None:
    repository = opened()
    repository.append([record(1), record(2), record(3)])
    repository.replace([record(3)])
    repository.append([record(4)])
    assert opened().load() == [record(3), record(4)]


@pytest.mark.servers
def test_ddl_a_history_is_the_same_after_compaction_from_the_position_on(opened: Open) -> None:
    history = TableHistory(opened(), lambda _, table: table != "outside")
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("d", "latin1"),), ()), at(10))
    statements = [
        "CREATE TABLE a (x int)",
        *(f"ALTER TABLE a ADD c{number} int" for number in range(20)),
        "CREATE TABLE outside (y int)",
        "CREATE TABLE b (z text)",
        "ALTER DATABASE d CHARACTER SET greek",
        "DROP TABLE b",
        "ALTER TABLE outside ADD w varchar(3)",
        "ALTER TABLE a DROP c3",
    ]
    for number, statement in enumerate(statements):
        history.apply(statement, "d", at(20 + number))
    end = 20 + len(statements)
    compacted = 20 + 15
    before = [
        [history.state("d", table, at(offset)) for table in ("a", "b", "outside")]
        for offset in range(compacted, end + 1)
    ]
    count = len(opened().load())
    assert history.compact([at(compacted)], records_min=1000) == 0
    assert history.compact([at(compacted), dataclasses.replace(at(end), epoch=2)]) == 0, (
        "what was executed cannot be read"
    )
    assert history.compact([at(compacted)]) == 15
    assert len(opened().load()) == count - 15
    assert history.compact([at(compacted)]) == 0
    for each in (history, TableHistory(opened(), lambda _, table: table != "outside")):
        assert each.covers(at(compacted))
        assert before == [
            [each.state("d", table, at(offset)) for table in ("a", "b", "outside")]
            for offset in range(compacted, end + 1)
        ]
    (change,) = history.apply("CREATE TABLE g (t text)", "d", at(end + 5))
    assert change.schema is not None
    assert change.schema.columns[0].charset == "greek"


def test_ddl_destinations_share_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    one, two = (SharedRepository(SqlRecordStore(url, name)) for name in ("one", "two"))
    one.append([record(1)])
    two.append([record(2)])
    two.replace([record(3)])
    assert one.load() == [record(1)]
    assert two.load() == [record(3)]


def test_ddl_no_error_of_a_database_holds_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTORY_PASSWORD", "s3cret")
    with pytest.raises(MetaError, match=r"mysql\+pymysql://u:\*\*\*@127\.0\.0\.1:1/x .* cannot be opened") as error:
        SqlRecordStore("mysql+pymysql://u:$HISTORY_PASSWORD@127.0.0.1:1/x", "shop")
    assert "s3cret" not in str(error.value)
    for url, sentence in (
        ("mysql+pymysql://u:$NOT_SET@h/x", "NOT_SET"),
        ("no url", r"meta\.url"),
        ("nosuchdb://h/x", "driver cannot be loaded"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            SqlRecordStore(url, "shop")
    (tmp_path / "not.db").write_text("this is no database at all, but a text that is long enough")
    with pytest.raises(MetaError, match="cannot be opened"):
        SqlRecordStore(f"sqlite:///{tmp_path}/not.db", "shop")
