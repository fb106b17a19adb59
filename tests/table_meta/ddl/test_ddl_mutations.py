"""Tests mutated statements of the whole corpus as events of a binlog: they cause at most a named stop, and the stream continues."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from sluice.cdc_engine.binlog.charsets.collations import CHARSETS, charset_of_id
from sluice.cdc_engine.contracts import TableChangeKind
from sluice.cdc_engine.errors import UnknownEventError
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts
from tests.parser.scan.event_factory import START, EventFactory, feed
from tests.table_meta.ddl_corpus import groups

SHARDS = 4
# The number of mutated statements of each shard, which take some 6 s of a core. More of them would delay every run of the tests.
MUTATIONS = 8000
INTACT = 1 / 3  # The share of statements that are not mutated, because mutated statements need tables.
STATES = {
    "SCHEMA_UNKNOWN",
    "SCHEMA_MISMATCH",
    "DDL_UNSUPPORTED",
    "DDL_REFUSED",
    "ROWS_ELSEWHERE",
    "DDL_HELD",
    "TYPE_UNSUPPORTED",
    "STATEMENT_FORMAT",
    "CASCADE_UNSEEN",
}
COLLATIONS = {charset.name: number for number in range(2000, 0, -1) if (charset := charset_of_id(number))}
PIECES = (
    b"'",
    b'"',
    b"`",
    b"(",
    b")",
    b",",
    b".",
    b"/*!",
    b"*/",
    b"--",
    b"#",
    b";",
    b"=",
    b"\\",
    b"\0",
    b"\xff",
    b"\xf0\x9f\x98\x80",
)
WORDS = (
    b"NULL",
    b"4294967296",
    b"99999999999999999999",
    b"1e999",
    b"x'f'",
    b"TABLE",
    b"WITH",
    b"ENUM('')",
    b"SET()",
    b"DECIMAL(99,98)",
)


class InMemory:
    """A repository that keeps records in memory."""

    def __init__(self) -> None:
        self.records: list[HistoryRecord] = []

    def load(self) -> list[HistoryRecord]:
        return list(self.records)

    def look(self) -> list[HistoryRecord]:
        return self.load()

    def append(self, records: Iterable[HistoryRecord]) -> None:
        self.records += records

    def replace(self, records: Iterable[HistoryRecord]) -> None:
        self.records = list(records)


def mutated(statement: bytes, other: bytes, chance: random.Random) -> bytes:
    """Returns the statement after one to four mutations: parts are removed, replaced, repeated or inserted."""
    for _ in range(chance.randint(1, 4)):
        at, end = sorted(chance.randint(0, len(statement)) for _ in range(2))
        end = min(end, at + chance.choice((1, 3, 30)))
        match chance.randint(0, 4):
            case 0:
                statement = statement[:at] + statement[end:]
            case 1:
                statement = statement[:at] + other[at:]
            case 2:
                statement = statement[:end] + statement[at:]
            case 3:
                statement = statement[:at] + chance.choice(PIECES) + statement[at:]
            case _:
                statement = statement[:at] + b" " + chance.choice(WORDS) + b" " + statement[end:]
    return statement


def status(chance: random.Random) -> bytes:
    """Returns the status variables of a query event, with a random SQL mode and random charsets."""
    modes = 0
    for bit in (0, 0, 1 << 2, 1 << 20, 1 << 9, 1 << 22, 1 << 0):
        modes |= bit * chance.randint(0, 1)
    charsets = b"".join(COLLATIONS[chance.choice(CLIENTS)].to_bytes(2, "little") for _ in range(3))
    return b"\x01" + modes.to_bytes(8, "little") + b"\x04" + charsets


UTF8MB4 = b"\x04" + (45).to_bytes(2, "little") * 3
CLIENTS = ("utf8mb4", "utf8mb4", "utf8mb4", *sorted(CHARSETS))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_ddl_mutations_give_a_named_stop_or_nothing(shard: int) -> None:
    """Applies the statements of each group in their order, some of them mutated. The intact statements create the tables that the mutated
    ones need.
    """
    chance = random.Random(shard)  # noqa: S311 - seeded
    everything = [statement for group in groups() for statement, _ in group.statements]
    played: Counter[str] = Counter()
    while played["mutated"] < MUTATIONS:
        group = chance.choice(groups())
        stream = Stream(chance.choice(("mysql", "mariadb")))
        for statement, _ in group.statements:
            if chance.random() < INTACT:
                stream.take(statement, group.database, UTF8MB4, played)
            else:
                played["mutated"] += 1
                stream.take(
                    mutated(statement, chance.choice(everything), chance), group.database, status(chance), played
                )
    assert played[TableChangeKind.STOPPED.value] > MUTATIONS // 20
    assert played[TableChangeKind.SCHEMA.value] > MUTATIONS // 20


class Stream:
    """Passes query events through a scanner to a schema history. Tables whose names begin with b are not captured."""

    def __init__(self, flavour: str) -> None:
        self.history = TableHistory(InMemory(), captured)
        server = DdlServerFacts(flavour=flavour, charset="utf8mb4")
        databases = tuple((group.database, "utf8mb4") for group in groups())
        self.history.seed(SchemaSnapshot(server, databases, ()), START)
        self.make, self.scan = EventFactory(), self.scanner()

    def scanner(self) -> Scanner:
        return Scanner(start=START, history=self.history, captured=captured)

    def take(self, statement: bytes, database: str, session: bytes, played: Counter[str]) -> None:
        # Some statements change rows without row events. The scanner refuses them with UnknownEventError, which stops an engine. The stream
        # then begins again with a new scanner.
        try:
            blocks = feed(self.scan, [self.make.query(statement, database, session)])
        except UnknownEventError:
            self.make, self.scan = EventFactory(), self.scanner()
            played["row changes"] += 1
            return
        for change in (change for block in blocks for change in block.changes):
            assert captured(change.database, change.table), "tables that are not captured do not matter"
            played[change.kind.value] += 1
            if change.kind is TableChangeKind.STOPPED:
                assert change.state in STATES, change
                assert "defect" not in change.reason, (statement, change.reason)
                assert change.reason.encode()
            elif change.schema is not None:
                assert json.dumps([column.name for column in change.schema.columns]).isascii()


def captured(_database: str, table: str) -> bool:
    return not table.startswith("b")
