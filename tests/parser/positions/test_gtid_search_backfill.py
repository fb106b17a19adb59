"""Tests the search for transactions of a GTID set in the binlogs of real servers: in several files, with others between them, purged, and
unknown.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.errors import ConfigurationError, PositionLostError
from sluice.cdc_engine.gtid import GtidSet, is_mariadb, named_transactions
from sluice.cdc_engine.instance.rows.rules import RequestedInterval, transactions_of
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.gtid_search import FoundTransactions, executed_part, find_transactions
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.position import file_number, order_key
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.positions.test_time_search_backfill import Clocked
from tests.parser.recording import source_of

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
EPOCH = 7


@dataclasses.dataclass(frozen=True)
class Row:
    """The GTID of a row's transaction, and the positions of the server before and after it."""

    gtid: str
    before: ServerFacts
    after: ServerFacts


class Written(Clocked):
    """Writes rows, each in a transaction."""

    def insert(self, number: int) -> Row:
        before = self.facts()
        self.row(number, 0)
        after = self.facts()
        if self.mariadb:
            return Row(after.executed, before, after)
        return Row(str(GtidSet.parse(after.executed).subtract(GtidSet.parse(before.executed))), before, after)

    def prepare(self, number: int) -> Row:
        return self._run(
            *(f"XA START 'x{number}'", f"INSERT INTO shop.orders VALUES ({number}, '')"),
            *(f"XA END 'x{number}'", f"XA PREPARE 'x{number}'"),
        )

    def decide(self, number: int, decision: str) -> Row:
        return self._run(f"XA {decision} 'x{number}'")

    def _run(self, *statements: str) -> Row:
        before = self.facts()
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        after = self.facts()
        if self.mariadb:
            return Row(after.executed, before, after)
        return Row(str(GtidSet.parse(after.executed).subtract(GtidSet.parse(before.executed))), before, after)

    def find(self, *rows: str, files: BinlogFiles | None = None) -> FoundTransactions:
        wanted = named_transactions(",".join(rows), mariadb=self.mariadb)
        return find_transactions(files or self.files(), wanted, EPOCH)


@pytest.mark.servers
@pytest.mark.seeds
def test_transactions_are_found_wherever_they_are_and_named_where_they_are_not_backfill(shop: DatabaseServer) -> None:
    written = Written(shop)
    written.file(0)
    rows = [written.insert(number) for number in range(3)]
    written.file(1)
    rows += [written.insert(number) for number in range(3, 6)]

    found = written.find(rows[4].gtid, rows[1].gtid)

    assert (found.begin.file, found.begin.offset) == (rows[1].before.file, rows[1].before.offset)
    assert found.begin.executed == rows[1].before.executed
    assert (found.end.file, found.end.offset) == (rows[4].after.file, rows[4].after.offset)
    keys = [
        tuple(order_key(EPOCH, file_number(facts.file), facts.offset) for facts in (row.before, row.after))
        for row in (rows[1], rows[4])
    ]
    assert list(found.order_keys) == keys, "the transactions between them are in no interval"
    assert found.from_us < found.to_us

    (together,) = written.find(rows[3].gtid, rows[4].gtid).order_keys
    first = order_key(EPOCH, file_number(rows[4].before.file), 4)
    assert first <= together[0] < together[1] == keys[1][1], "neighbours are one interval, from the file's beginning on"

    unknown = f"0-77-{1 << 40}" if written.mariadb else f"{UUID}:77"
    with pytest.raises(ConfigurationError, match=f"has no transaction {unknown}: correct --gtids"):
        written.find(rows[1].gtid, unknown)
    facts = written.facts()
    purged = BinlogFiles(source_of(shop), dataclasses.replace(facts, logs=facts.logs[-1:]))
    with pytest.raises(
        PositionLostError, match=rf"has purged {rows[1].gtid}: its oldest binlog file is {facts.file}\."
    ):
        written.find(rows[1].gtid, rows[4].gtid, files=purged)


@pytest.mark.servers
@pytest.mark.seeds
def test_one_half_of_an_xa_transaction_is_refused_and_both_halves_are_found_backfill(shop: DatabaseServer) -> None:
    written = Written(shop)
    written.file(0)
    written.insert(99)
    prepared, between, committed = written.prepare(100), written.insert(101), written.decide(100, "COMMIT")
    undone, rolled_back = written.prepare(102), written.decide(102, "ROLLBACK")
    again, _ = written.prepare(100 + 3), written.decide(100 + 3, "COMMIT")
    last = written.insert(104)

    both = written.find(prepared.gtid, committed.gtid)
    assert (both.begin.offset, both.end.offset) == (prepared.before.offset, committed.after.offset)
    assert written.find(undone.gtid, rolled_back.gtid).begin.offset == undone.before.offset
    assert written.find(undone.gtid, last.gtid), "it was rolled back"
    for named, other, statements in (
        (prepared, committed, ("XA PREPARE", "XA COMMIT")),
        (committed, prepared, ("XA COMMIT", "XA PREPARE")),
    ):
        first, second = statements
        said = rf"names {named.gtid}, the {first} of the XA transaction .*, but not the GTID of its {second} \({other.gtid}\)"
        with pytest.raises(ConfigurationError, match=said):
            written.find(named.gtid, between.gtid, last.gtid)
    with pytest.raises(ConfigurationError, match=rf"names {prepared.gtid}.* XA COMMIT \(later\): .* Name both GTIDs"):
        written.find(prepared.gtid)
    with pytest.raises(ConfigurationError, match=rf"names {again.gtid}, the XA PREPARE"):
        written.find(again.gtid, last.gtid)
    written.file(1)
    far = written.prepare(105)
    written.file(2)
    with pytest.raises(ConfigurationError, match=r"the XA COMMIT of .* XA PREPARE \(in an earlier file\)"):
        written.find(written.decide(105, "COMMIT").gtid)
    assert far.gtid


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("text", "mariadb", "runs"),
    [
        (f"{UUID.upper()}:5-7:9", False, {UUID: ((5, 7), (9, 9))}),
        (f"{UUID}:blue:1, {UUID}:2", False, {f"{UUID}:blue": ((1, 1),), UUID: ((2, 2),)}),
        ("0-1-5,0-1-6, 0-2-9,3-1-1", True, {"0-1": ((5, 6),), "0-2": ((9, 9),), "3-1": ((1, 1),)}),
    ],
)
def test_the_forms_of_both_servers_name_transactions(text: str, mariadb: bool, runs: object) -> None:
    assert named_transactions(text, mariadb=mariadb).runs == runs


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("executed", "wanted", "part"),
    [
        ("", f"{UUID}:1", {}),
        (f"{UUID}:1-5", f"{UUID}:4-9", {UUID: ((4, 5),)}),
        ("0-2-50", "0-1-49,0-1-51,1-1-3", {"0-1": ((49, 49),)}),
    ],
)
def test_what_was_executed_before_a_file_is_not_in_it_or_later(executed: str, wanted: str, part: object) -> None:
    named = named_transactions(wanted, mariadb=is_mariadb(wanted))
    assert executed_part(executed, named).runs == part


MYSQL = ServerFacts(server_uuid=UUID, mariadb=False, version="8.0", gtid_enabled=True)


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("facts", "text", "said"),
    [
        (dataclasses.replace(MYSQL, gtid_enabled=False), f"{UUID}:1", "the source has no GTIDs"),
        (
            MYSQL,
            "0-1-5",
            "is not an entry of a GTID set; the source is a MySQL server, whose GTID sets have the form UUID:5-7:9",
        ),
        (dataclasses.replace(MYSQL, mariadb=True), f"{UUID}:1", "is not a MariaDB GTID; the source is a MariaDB"),
        (MYSQL, " , ", "names no transaction"),
    ],
)
def test_what_names_no_transactions_is_refused_with_the_form(facts: ServerFacts, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        transactions_of(RequestedInterval(from_us=0, gtids=text), facts)
