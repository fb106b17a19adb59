"""Tests that no exception from reading or applying a statement ends the stream. Only the tables that the statement may concern stop, and
their names are reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.binlog.charsets.collations import CHARSETS, charset_of_id
from sluice.cdc_engine.binlog.events.control import parse_query
from sluice.cdc_engine.binlog.events.table_map import parse_table_map
from sluice.cdc_engine.contracts import TableChange, TableChangeKind
from sluice.cdc_engine.errors import MetaError, TableStoppedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history import effects, fitting, history
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, Stopped, TableSchema
from tests.parser.scan.event_factory import EventFactory

EXCEPTIONS = (
    LookupError,
    StopIteration,
    RecursionError,
    MemoryError,
    UnicodeDecodeError,
    AssertionError,
    OSError,
    KeyError,
)
ID = DeclaredColumn(name="id", type="int", nullable=False)
TABLES = ("orders", "items", "ü", "two-words", "other.t")
KIND_OF_STATEMENT = (
    ("ALTER TABLE {t} ADD c int", True),
    ("TRUNCATE {t}", True),
    ("DROP TABLE {t}", True),
    ("CREATE TABLE IF NOT EXISTS {t} (a text(4294967295))", True),
    ("RENAME TABLE {t} TO new_name", True),
    ("GRANT SELECT ON *.* TO x", False),
    ("FLUSH TABLES", False),
)


def at(offset: int) -> Position:
    return Position(epoch=1, file="binlog.000001", offset=offset)


def captured(database: str, table: str) -> bool:
    return database == "shop" and table != "not_ours"


@pytest.fixture
def known(tmp_path: Path) -> TableHistory:
    """Returns the schema history of the database shop. One table of shop is not captured, and all others are."""
    made = TableHistory(tmp_path / "schema.jsonl", captured)
    tables = tuple(
        TableSchema(database="shop", table=name, charset="utf8mb4", columns=(ID,), key=("id",))
        for name in (*TABLES, "not_ours")
    )
    databases = (("shop", "utf8mb4"), ("elsewhere", "latin1"))
    made.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), databases, tables), at(100))
    return made


def stopped(changes: tuple[TableChange, ...]) -> set[str]:
    assert all(change.kind is TableChangeKind.STOPPED for change in changes)
    return {change.table for change in changes}


def failing(error: type[Exception]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "chosen") if error is UnicodeDecodeError else error("chosen")

    return fail


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((history, name) for name in ("read_statement", "effects_of", "_changes", "_effect_records")),
        *((effects, name) for name in ("altered", "created", "moved", "_become", "_gone", "_reviewed")),
    ],
)
def test_ddl_a_mistake_anywhere_stops_the_table_by_name_and_the_rest_continues(
    known: TableHistory, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    chance = random.Random(name)  # noqa: S311 - a seeded choice
    right = getattr(owner, name)
    offset = 200
    for _ in range(40):
        table = chance.choice((*TABLES, "not_ours"))
        form, concerns = chance.choice(KIND_OF_STATEMENT)
        wrong = failing(chance.choice(EXCEPTIONS))
        raised: list[bool] = []

        def once(*values: Any, wrong: Callable[..., Any] = wrong, raised: list[bool] = raised, **named: Any) -> Any:
            if not raised:
                raised.append(True)
                wrong()
            return right(*values, **named)

        monkeypatch.setattr(owner, name, once)
        offset += 10
        changes = known.apply(form.format(t=f"`{table}`"), "shop", at(offset))
        if raised:
            assert stopped(changes) - {"new_name"} == ({table} if concerns and table != "not_ours" else set())
            for change in changes:
                assert change.state == "SCHEMA_UNKNOWN"
                assert "report" in change.reason
        monkeypatch.undo()
        for other in (name for name in TABLES if name != table):
            assert isinstance(known.state("shop", other, at(offset)), TableSchema)
        known.rewind(at(150))
        offset = 200


def test_ddl_a_mistake_about_a_database_stops_what_is_in_it(
    known: TableHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "read_statement", failing(LookupError))
    assert stopped(known.apply("DROP DATABASE shop", "", at(200))) == set(TABLES)
    known.rewind(at(150))
    assert stopped(known.apply("ALTER SCHEMA COLLATE x", "shop", at(200))) == set(TABLES)
    known.rewind(at(150))
    assert known.apply("ALTER DATABASE elsewhere COLLATE x", "shop", at(200)) == ()
    monkeypatch.undo()
    known.apply("CREATE TABLE elsewhere.t (a varchar(3))", "shop", at(210))
    state = known.state("elsewhere", "t", at(210))
    assert isinstance(state, Stopped), "the charset of its database is not known any more"


@pytest.mark.found
@pytest.mark.parametrize("statement", ["CALL p()", "UPDATE orders SET a = 1", "SELECT f()"])
def test_ddl_a_mistake_about_a_change_of_rows_stops_every_table(
    known: TableHistory, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Defect 93: only the tables that the statement mentions were stopped, although a routine or trigger may write other tables."""
    monkeypatch.setattr(history, "effects_of", failing(LookupError))
    assert stopped(known.apply(statement, "shop", at(200))) == set(TABLES)


def test_ddl_errors_that_packages_raise_themselves_are_not_taken_for_a_mistake(
    known: TableHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "effects_of", failing(MetaError))
    with pytest.raises(MetaError):
        known.apply("TRUNCATE orders", "shop", at(200))


def test_ddl_a_mistake_at_a_table_map_stops_its_table(known: TableHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    table_map = parse_table_map(EventFactory(checksum=False).table_map(5, "orders")[19:])
    for error in EXCEPTIONS:
        monkeypatch.setattr(history, "fit", failing(error))
        with pytest.raises(TableStoppedError, match="a defect of Sluice"):
            known.resolve(table_map, at(200))
    monkeypatch.undo()
    assert fitting.fit is vars(history)["fit"]
    assert known.resolve(table_map, at(200)).table == "orders"


@pytest.mark.parametrize("client", sorted(CHARSETS))
def test_ddl_a_client_of_any_charset_is_read(known: TableHistory, client: str) -> None:
    """Python lacks some charsets of clients, and myloader begins with SET NAMES binary. These statements have only ASCII characters, which
    are the same bytes in all charsets that a client can use.
    """
    collation = {name: number for number in range(2000, 0, -1) if (name := _name_of(number))}[client]
    status = b"\x04" + collation.to_bytes(2, "little") * 3
    for text in ("FLUSH TABLES", "CREATE USER x", "ALTER TABLE items ADD c int"):
        query = parse_query(EventFactory(checksum=False).query(text, status=status), 0)
        assert query.session.client == query.session.connection == query.session.server == client
        changes = known.apply(query.text, query.database, at(200), query.session)
        if client not in {"ucs2", "utf16", "utf16le", "utf32"}:  # No client can use these charsets.
            assert [change.kind for change in changes] == [TableChangeKind.SCHEMA] * ("items" in text)


def _name_of(number: int) -> str:
    found = charset_of_id(number)
    return found.name if found else ""


def test_ddl_a_text_beyond_all_lengths_is_a_longtext(known: TableHistory) -> None:
    for offset, (table, size) in enumerate((("orders", 4294967295), ("not_ours", 1073741824), ("items", 1073741823))):
        known.apply(f"ALTER TABLE {table} ADD c text({size})", "shop", at(200 + offset))
        state = known.state("shop", table, at(200 + offset))
        assert isinstance(state, TableSchema)
        assert state.columns[-1].type == "longtext"
