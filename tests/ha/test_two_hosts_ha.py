"""Tests engine hosts that share a ledger and no folder, one after the other: what was recorded and requested on one host is valid on the
next.
"""

from __future__ import annotations

import copy
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ConfigurationError, MetaError, NotSharedError, SourceConnectionError
from sluice.cdc_engine.handlers.calls import Calls
from sluice.cdc_engine.instance.failover.failover import reading_now
from sluice.cdc_engine.keeping import orders
from sluice.cdc_engine.meta.forget_requests import forget_done, forgets_requested, request_forget
from sluice.cdc_engine.meta.left_consumers import LeftConsumer, left_consumers, write_left_consumers
from sluice.cdc_engine.meta.resume_requests import begin_done, new_start_requested, request_new_start
from sluice.cdc_engine.parser.stream import event_parser
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.records.sql import SqlRecordStore
from sluice.cdc_engine.source.in_use import address_in_use, use
from sluice.console.acts.position import move, request
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_ledgers import at
from tests.handlers.fix_handlers import Remembering, batch, line
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


class Hosts:
    """The hosts of one destination. Each host has its own folder and a conf/ that names the shared ledger. `staging` has the lines of conf/
    that set the location of staged batches.
    """

    def __init__(self, root: Path, captured: Captured, staging: str) -> None:
        self._root, self._captured, self._staging = root, captured, staging

    def host(self, name: str, *lines: str) -> Captured:
        made = copy.copy(self._captured)
        made.conf, made.directory = self._root / name / "conf", self._root / name / "data" / "engine" / "shop"
        (made.conf / "destinations").mkdir(parents=True, exist_ok=True)
        (made.conf / "sluice.yaml").write_text(
            f"data_dir: {self._root / name}/data\nlake: {self._root}/lake\n{self._staging}"
            f"meta: {{kind: sql, url: 'sqlite:///{self._root}/meta.db', session_seconds: 5}}\n"
        )
        made.describe(*lines)
        return made


@pytest.fixture
def hosts(mysql80: DatabaseServer, s3_store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("LAKE_ACCESS", ACCESS_KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    options = {**s3_store.options, "aws_access_key_id": "$LAKE_ACCESS", "aws_secret_access_key": "$LAKE_SECRET"}
    staging = f"staging: s3://{s3_store.bucket}/{uuid.uuid4().hex[:12]}\nstorage_options: {json.dumps(options)}\n"
    return Hosts(tmp_path, Captured(tmp_path / "source", mysql80), staging)


@pytest.fixture
def apart(mysql80: DatabaseServer, tmp_path: Path) -> Hosts:
    """Sets up hosts without an object store. No host can read the files in the folder of another host."""
    return Hosts(tmp_path, Captured(tmp_path / "source", mysql80), "")


def test_ha_s3_a_host_with_another_include_stops_what_is_new_to_it(hosts: Hosts) -> None:
    one, two = hosts.host("one", "exclude: .*\\.late"), hosts.host("two")
    one.run(f"CREATE TABLE {one.database}.late (n INT PRIMARY KEY)")
    with running(one) as engine:
        one.run(f"INSERT INTO {one.database}.late VALUES (1)")
        one.insert([2])
        assert one.take(engine, 1) == [2]
    with running(two) as engine:
        (stopped,) = engine.status().stopped_tables
        assert (stopped.table, stopped.state) == ("late", "NEWLY_INCLUDED")
        two.run(f"INSERT INTO {one.database}.late VALUES (3)")
        two.insert([4])
        assert two.take(engine, 1) == [4], "the other tables go on"
    with running(one) as engine:
        one.insert([5])
        assert one.take(engine, 1) == [5], "to whom it is excluded again"


def test_ha_s3_a_host_that_comes_back_reads_again_what_another_began_to_read(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host began at an earlier position. So this host's stored events follow transactions that will arrive again."""
    one, two = hosts.host("one", "store: {kind: file}"), hosts.host("two", "store: {kind: file}")
    table, name = f"{one.database}.numbers", f"'{one.database}'"
    with running(one) as engine:
        one.insert([1])
        assert one.take(engine, 1) == [1]
        one.run(f"XA START {name}", f"INSERT INTO {table} VALUES (7, '')", f"XA END {name}", f"XA PREPARE {name}")
        one.insert([2])
        wait_for("it is stored", lambda: engine.status().stream.put_sequence >= 2)
    tried: list[object] = []

    def breaks(*given: object, **_: object) -> None:
        tried.append(given)
        raise SourceConnectionError("the source is away")

    with monkeypatch.context() as patch:
        patch.setattr(event_parser, "begin_dump", breaks)
        with running(two):
            wait_for("it has begun", lambda: tried)
    assert any((one.directory / "events").iterdir())
    with running(one) as engine:
        one.run(f"XA COMMIT {name}")
        one.insert([3])
        assert one.take(engine, 3) == [2, 7, 3]
    with running(two) as engine:
        two.insert([4])
        assert two.take(engine, 1) == [4]


def test_ha_another_folder_is_refused_where_batches_are_in_folders(apart: Hosts) -> None:
    one, two = apart.host("one"), apart.host("two")
    with running(one) as engine:
        one.insert([1])
        assert one.take(engine, 1) == [1]
    with (
        pytest.raises(
            ConfigurationError,
            match=r"the last engine of shop was on .* with another folder than .*two.*sluice position set shop",
        ),
        running(two),
    ):
        pass
    with running(one) as engine:
        one.insert([2])
        assert one.take(engine, 1) == [2], "nothing of it is lost to its own"
    cursor = read_ledger(two.config.destination_dir("shop")).cursor
    assert cursor is not None
    shutil.rmtree(one.directory)
    wanted = request(f"{cursor.file}:{cursor.offset}", "", latest=False)
    move(two.config, "shop", wanted, confirm=lambda _: True, say=lambda _: None)
    with running(two) as engine:
        two.insert([3])
        assert two.take(engine, 1) == [3]


def test_ha_a_statement_that_is_read_while_the_ledger_is_away_ends_no_stream(
    apart: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, tried = apart.host("one"), list[str]()
    write = SqlRecordStore.write

    def away(self: SqlRecordStore, name: str, text: str, **rest: Any) -> int:
        if not name.startswith("schema-"):
            return write(self, name, text, **rest)
        tried.append(name)
        raise NotSharedError("nobody answers; Sluice tries again")

    with running(one) as engine:
        one.insert([1])
        assert one.take(engine, 1) == [1]
        monkeypatch.setattr(SqlRecordStore, "write", away)
        one.run(f"ALTER TABLE {one.database}.numbers ADD late INT")
        wait_for("it says so", lambda: "nobody answers" in engine.status().reason)
        wait_for("it tries again", lambda: len(tried) > 1)
        monkeypatch.undo()
        one.run(f"INSERT INTO {one.database}.numbers (n) VALUES (2)")
        assert one.take(engine, 1) == [2]
    with running(one) as engine:
        assert engine.status().stopped_tables == ()


def test_ha_what_a_newer_version_wrote_is_refused_by_name(apart: Hosts) -> None:
    one = apart.host("one")
    with running(one) as engine:
        one.insert([1])
        assert one.take(engine, 1) == [1]
    directory = one.config.destination_dir("shop")
    documents = record_store(directory)
    for name, change in (
        ("meta.json", {"format": 5}),
        ("meta.json", {"more": "than is known"}),
        ("schema-head", {"format": 3}),
    ):
        kept = documents.read(name)
        assert kept is not None
        newer = json.dumps({**json.loads(kept.text), **change})
        documents.write(name, newer, version=kept.version, token=kept.token)
        with pytest.raises(MetaError, match=r"has format|has the keys"), running(one):
            pass
        there = documents.read(name)
        assert there is not None
        assert there.text == newer, "and left as it is"
        documents.write(name, kept.text, version=there.version, token=there.token)
    with running(one) as engine:
        one.insert([2])
        assert one.take(engine, 1) == [2]


def test_ha_orders_and_notes_of_one_host_hold_on_the_next(apart: Hosts) -> None:
    one, two = (apart.host(name).config.destination_dir("shop") for name in ("one", "two"))
    orders.stay_stopped(one, "ada@one")
    stopped = orders.stopped(two)
    assert stopped is not None
    assert stopped.by == "ada@one"
    assert orders.may_run(two)
    assert orders.stopped(one) is None
    orders.request(two, "release")
    assert orders.requested(one) is not None
    orders.done(one)
    assert orders.requested(two) is None
    request_new_start(one, 1)
    assert new_start_requested(two, 1)
    begin_done(two)
    assert not new_start_requested(one, 1)
    request_forget(one, 7)
    assert forgets_requested(two) == (7,)
    forget_done(two, 7)
    assert forgets_requested(one) == ()
    write_left_consumers(one, [LeftConsumer(1002, "shop.*")])
    assert [each.client_id for each in left_consumers(two, at(4))] == [1002]
    handler = Remembering()
    Calls("shop", one, [("audit", handler)]).will_be("after", batch(), line(batch()))
    Calls("shop", two, [("audit", handler)]).call_due(line(cursor=200))
    assert handler.calls == [("after", 7, "")], "the ledger had the ack, and its writer was killed before it told"
    record_store(one).put(orders.STOPPED_FILE, "[]")
    stop = orders.stopped(two)
    assert stop is not None, "an order that cannot be read is obeyed"
    assert stop.by == "somebody"


def test_ha_failover_the_source_that_one_host_chose_is_read_by_the_next(apart: Hosts) -> None:
    one, two = apart.host("one"), apart.host("two")
    port = one.server.port
    for host in (one, two):
        path = host.conf / "destinations" / "shop.yaml"
        said = f"sources: [{{user: root, port: {port}}}, {{user: root, host: 127.0.0.2, port: {port}}}]\ninclude: x\n"
        path.write_text(said)
    first, second = one.config.destination_dir("shop"), two.config.destination_dir("shop")
    use(first, f"127.0.0.2:{port}", "by command")
    assert one.config.destinations["shop"].source.host == "127.0.0.2"
    assert address_in_use(second) == "", "reading conf/ asks nobody"
    assert reading_now(two.config.destinations["shop"], second).source.host == "127.0.0.2"
    assert two.config.destinations["shop"].source.host == "127.0.0.2", "and whoever reads it here afterwards knows"
