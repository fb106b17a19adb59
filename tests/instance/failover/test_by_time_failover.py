"""Tests a pair of real servers without GTIDs: a standby source takes over by the clock if conf/ permits it, and no table without a key has
a row twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.engine.staging_rules import keyed_tables
from sluice.cdc_engine.instance.failover.by_time import by_time_of, cannot_repeat, stops_of
from sluice.cdc_engine.instance.parts import EngineParts
from sluice.cdc_engine.parser.positions.by_time import behind, started
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import DumpStart, StartChoice
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.in_use import address_in_use
from sluice.cdc_engine.source.server import Source
from tests.fix_servers import ServerFactory
from tests.instance.failover.fix_pair import Pair, run
from tests.waiting import wait_for

READ = Position(epoch=2, file="binlog.000003", offset=700, server_uuid="one", time_us=1_700_000_000_000_000)


@pytest.fixture
def pair(fresh_server: ServerFactory, tmp_path: Path) -> Iterator[Pair]:
    made = Pair("mysql-8.0.31", fresh_server, tmp_path, gtids=False)
    yield made
    made.slot.stop()


@pytest.mark.servers
def test_failover_by_time_reads_a_minute_again_and_stops_what_has_no_key(pair: Pair) -> None:
    first, second = pair.first, pair.second
    pair.describe("snapshot: never")
    wait_for("the engine runs", lambda: (engine := pair.engine()) is not None and engine.status().state == "RUNNING")
    pair.write(first, 12)
    pair.settle()
    run(second, "STOP SLAVE")
    pair.write(first)
    pair.settle()
    first.kill()
    wait_for("it is not allowed", lambda: "only if both servers have GTIDs" in " ".join(pair.troubles()))
    pair.end_engine()
    pair.describe("snapshot: never", "failover: by_time")
    first.restart()
    wait_for("the master is read", lambda: (engine := pair.engine()) is not None and engine.status().state == "RUNNING")
    first.kill()
    wait_for(
        "the standby lacks something", lambda: "lacks changes that the engine has read" in " ".join(pair.troubles())
    )
    assert address_in_use(pair.directory) == ""
    first.restart()
    run(second, "START SLAVE")
    wait_for("the master is well again", lambda: pair.troubles() == ())

    pair.write(first)
    pair.wait_until_read(first)
    batch = pair.next_batch()
    pair.lake.merge(pair.directory / batch.path, ["numbers"])  # Then the run dies.
    pair.wait_until_replicated(second)
    first.kill()
    wait_for("the standby is read", lambda: address_in_use(pair.directory) == f"127.0.0.1:{second.port}")
    pair.promote(second)
    before = len(pair.written)
    pair.write(second)
    pair.settle(["numbers"])
    (stopped,) = read_ledger(pair.directory).stopped_tables
    assert (stopped.table, stopped.state, stopped.position.epoch) == ("notes", "FAILED_OVER_BY_TIME", pair.epoch())
    assert pair.epoch() == 2
    assert set(pair.lake.rows["numbers"]) == set(pair.written), "its key makes one of what came twice"
    assert len(pair.lake.rows["numbers"]) > len(pair.written), "a minute came twice"
    assert sorted(pair.lake.rows["notes"]) == pair.written[:before], "nothing twice, and nothing after the stop"


def test_failover_by_time_needs_the_setting_and_names_what_is_missing() -> None:
    source = Source(destination="shop", host="two", port=3306, user="sluice", server_id=7)
    captured = TableFilter("shop\\..*").keeps
    config = DestinationConfig.model_validate({"name": "shop", "source": {"user": "root"}})
    assert by_time_of(source, config, captured) is None
    assert by_time_of(source, config.model_copy(update={"failover": "by_time"}), captured) is not None
    facts = ServerFacts(
        version="8.0.31", mariadb=False, server_uuid="two", gtid_enabled=False, file="mysql-bin.000002", offset=500
    )
    lost = behind(source.address, READ, facts)
    assert lost.not_yet
    for words in (
        "two:3306 lacks changes that the engine has read",
        "mysql-bin.000002:500",
        "2023-11-14T22:13:20",
        "Safe options",
    ):
        assert words in str(lost)
    start = started(StartChoice(file="mysql-bin.000001", offset=90), READ, facts, 5, 90)
    assert (start.position.server_uuid, start.position.file_created, start.read_twice_seconds) == ("two", 5, 90)
    tables = [
        TableVersion(database="shop", table=name, columns=(), key=key) for name, key in (("a", ("n",)), ("b", ()))
    ]
    (stop,) = stops_of(tables, start)
    assert "reads the changes of the last 90 s again" in stop.reason
    assert (stop.name, stop.position) == ("shop.b", start.position)
    exact = DumpStart(position=READ, by_gtid=True, executed_known=True)
    assert stops_of(tables, exact) == ()


def test_failover_by_time_stops_what_keeps_each_change_and_what_foreign_keys_change() -> None:
    config = DestinationConfig.model_validate(
        {
            "name": "shop",
            "source": {"user": "root"},
            "tables": {"shop.log": {"change_log": True}, "shop.versions": {"history": True}, "shop.plain": {}},
        }
    )
    names = ("log", "versions", "plain", "parent", "child")
    tables = [TableVersion(database="shop", table=name, columns=(), key=("n",)) for name in names]
    cascade = Cascade(
        name="fk",
        parent=("shop", "parent"),
        child=("shop", "child"),
        columns=("p",),
        referenced=("n",),
        on_update="CASCADE",
    )
    start = DumpStart(position=READ, by_gtid=False, executed_known=False, read_twice_seconds=60)
    stops = {each.table: each.reason for each in stops_of(tables, start, cannot_repeat(config, [cascade]))}
    assert sorted(stops) == ["child", "log", "versions"]
    for name, words in (("child", "foreign key fk"), ("log", "change_log: true"), ("versions", "history: true")):
        assert words in stops[name]
        assert "must be re-snapshotted" in stops[name]


def test_failover_by_time_stops_the_tables_of_where_the_stream_is() -> None:
    """The parser has read further than the ledger's position. A table that was created between these positions must stop too."""
    requested: list[Position] = []
    further = dataclasses.replace(READ, offset=9000)
    parser, ledger = SimpleNamespace(position=further), SimpleNamespace(resume_position=READ)

    def versions(position: Position) -> tuple[TableVersion, ...]:
        requested.append(position)
        return ()

    history = SimpleNamespace(versions=versions)
    rooms = SimpleNamespace(parser=parser, meta=SimpleNamespace(ledger=ledger), history=history)
    config = DestinationConfig.model_validate({"name": "shop", "source": {"user": "root"}})
    keyed_tables(config, cast("EngineParts", rooms))
    parser.position = None
    keyed_tables(config, cast("EngineParts", rooms))
    assert requested == [further, READ]
