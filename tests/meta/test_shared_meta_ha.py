"""Tests, with one suite on real servers, every store of a ledger that several hosts share. A write needs the token of the lease, and the
version that it replaces.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from sluice.cdc_engine.contracts import ClientIdentity, LedgerLocation
from sluice.cdc_engine.errors import LeaseLostError, MetaError, NotSharedError
from sluice.cdc_engine.meta import canal_cursor, managers
from sluice.cdc_engine.meta.ledger_record import ledger_to_text
from sluice.cdc_engine.meta.managers import open_meta, read_ledger
from sluice.cdc_engine.meta.stored_ledger import LEDGER, StoredLedger
from sluice.cdc_engine.records.contract import NOT_THERE, NOTHING, RecordStore, StoredRecord
from sluice.cdc_engine.records.location import record_store
from tests.fix_ledgers import at, full_ledger, handed_out
from tests.parser.proxy import Proxy
from tests.records.fix_locations import SHARED, location_of
from tests.waiting import wait_for


@dataclasses.dataclass
class Held:
    """A lease that is held until the test reports it as lost."""

    token: int = 1
    lost: bool = False

    def try_acquire(self) -> bool:
        return True

    def holder(self) -> None:
        return None

    def check(self) -> None:
        if self.lost:
            raise LeaseLostError("lost")

    def release(self) -> None:
        self.lost = True


@pytest.fixture(params=SHARED)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    return location_of(request.param, request, tmp_path)


@pytest.fixture
def documents(location: LedgerLocation) -> RecordStore:
    return record_store(location)


def test_ha_a_ledger_is_read_back_as_it_was(location: LedgerLocation) -> None:
    meta = open_meta(location, Held())
    assert meta.is_new
    meta.update(lambda _: full_ledger())
    reread = open_meta(location, Held())
    assert not reread.is_new
    assert ledger_to_text(reread.ledger) == ledger_to_text(full_ledger()) == ledger_to_text(read_ledger(location))
    assert [client.filter for client in reread.ledger.clients] == [r"shop\..*"]


def test_ha_a_stale_holder_is_refused_by_name(location: LedgerLocation) -> None:
    old = open_meta(location, Held(token=1))
    old.update(lambda ledger: ledger.set_cursor(at(4)))
    new = open_meta(location, Held(token=2))
    with pytest.raises(
        LeaseLostError, match=r"was written by the holder of lease 2, so the write of lease 1 is refused"
    ):
        old.update(lambda ledger: ledger.set_cursor(at(9)))
    assert old.ledger.cursor == at(4) == read_ledger(location).cursor
    new.update(lambda ledger: ledger.set_cursor(at(5)))
    with pytest.raises(LeaseLostError, match="lease 2"):
        open_meta(location, Held(token=1))
    assert read_ledger(location).cursor == at(5)


def test_ha_the_holder_of_the_lease_knows_that_the_store_went_back(location: LedgerLocation) -> None:
    """If a replica of the database takes over without the last commits, the ledger is older than the last write, although it has the
    token of this lease.
    """
    store = record_store(location)
    meta = open_meta(location, Held(token=3))
    meta.update(lambda ledger: ledger.set_cursor(at(4)))
    before = store.read(LEDGER)
    assert before is not None
    meta.update(lambda ledger: ledger.set_cursor(at(9)))
    meta.require_own()
    store.remove(LEDGER)
    store.write(LEDGER, before.text, version=NOT_THERE, token=3)
    with pytest.raises(LeaseLostError, match="holder of lease 3, so the write of lease 3"):
        meta.update(lambda ledger: ledger.set_cursor(at(12)))
    with pytest.raises(LeaseLostError, match="when it gets the lease again"):
        meta.require_own()
    again = open_meta(location, Held(token=4))
    assert again.ledger.cursor == at(4), "the next engine continues from what is stored"
    again.update(lambda ledger: ledger.set_cursor(at(5)))


def test_ha_two_that_begin_a_ledger_do_not_both(location: LedgerLocation) -> None:
    first, second = open_meta(location, Held(token=1)), open_meta(location, Held(token=2))
    first.update(lambda ledger: ledger.set_cursor(at(4)))
    with pytest.raises(LeaseLostError):
        second.update(lambda ledger: ledger.set_cursor(at(5)))
    assert read_ledger(location) == first.ledger


def test_ha_without_the_lease_nothing_is_written(location: LedgerLocation) -> None:
    lease = Held()
    meta = open_meta(location, lease)
    meta.update(lambda ledger: ledger.set_cursor(at(4)))
    lease.lost = True
    with pytest.raises(LeaseLostError, match="lost"):
        meta.update(lambda ledger: ledger.set_cursor(at(5)))
    assert meta.ledger.cursor == at(4) == read_ledger(location).cursor


def test_ha_updates_of_many_threads_all_count(location: LedgerLocation) -> None:
    meta = open_meta(location, Held())
    threads = [
        threading.Thread(target=meta.update, args=(lambda ledger: ledger.begin_epoch(ledger.epoch + 1),))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meta.ledger.epoch == 9
    assert read_ledger(location).epoch == 9


def test_ha_a_ledger_that_is_not_understood_is_refused_and_left_alone(
    location: LedgerLocation, documents: RecordStore
) -> None:
    documents.write(LEDGER, "{}", version=0)
    with pytest.raises(
        MetaError, match=r"meta\.json in .* is not a valid ledger: the ledger has format None.*Restore the ledger"
    ):
        open_meta(location, Held())
    kept = documents.read(LEDGER)
    assert kept is not None
    assert kept.text == "{}"


def test_ha_the_records_of_an_earlier_version_are_refused_by_name(
    location: LedgerLocation, documents: RecordStore
) -> None:
    documents.write("ledger", '{"format": 3}', version=0)
    for opened in (lambda: open_meta(location, Held()), lambda: read_ledger(location)):
        with pytest.raises(MetaError, match=r"records of an earlier version of Sluice.*`sluice position set`"):
            opened()
    documents.remove("ledger")
    assert open_meta(location, Held()).is_new


class Mute(RecordStore):
    """A record store that can leave its next write without an answer. If `silent_after` is True, the store has the write nevertheless,
    and if it is False, the store does not have it.
    """

    def __init__(self, kept: RecordStore) -> None:
        self._kept = kept
        self.silent_after: bool | None = None

    def read(self, name: str) -> StoredRecord | None:
        return self._kept.read(name)

    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        return self._kept.read_all(prefix)

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        silent, self.silent_after = self.silent_after, None
        if silent is False:
            raise MetaError("no answer")
        written = self._kept.write(name, text, version=version, token=token, also=also)
        if silent:
            raise MetaError("no answer")
        return written

    def remove(self, name: str, version: int | None = None) -> bool:
        return self._kept.remove(name, version)

    def __str__(self) -> str:
        return str(self._kept)


@pytest.mark.parametrize("was_written", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_ha_after_an_unanswered_write_the_ledger_continues(
    location: LedgerLocation, documents: RecordStore, was_written: bool, is_first: bool
) -> None:
    """The store may have the write that got no answer. For the caller this write failed, so the next write of the caller replaces it."""
    mute = Mute(documents)
    meta = StoredLedger(mute, location.destination, token=1)
    if not is_first:
        meta.update(lambda ledger: ledger.set_cursor(at(4)))
    before = meta.ledger
    mute.silent_after = was_written
    with pytest.raises(MetaError, match="no answer"):
        meta.update(lambda ledger: ledger.set_cursor(at(6)))
    assert meta.ledger == before
    meta.update(lambda ledger: ledger.set_cursor(at(5)))
    assert read_ledger(location).cursor == at(5)


@pytest.mark.parametrize("was_written", [True, False])
def test_ha_after_an_unanswered_write_a_later_holder_still_wins(
    location: LedgerLocation, documents: RecordStore, was_written: bool
) -> None:
    mute = Mute(documents)
    meta = StoredLedger(mute, location.destination, token=1)
    meta.update(lambda ledger: ledger.set_cursor(at(4)))
    mute.silent_after = was_written
    with pytest.raises(MetaError, match="no answer"):
        meta.update(lambda ledger: ledger.set_cursor(at(6)))
    new = open_meta(location, Held(token=2))
    with pytest.raises(LeaseLostError, match="lease 2"):
        meta.update(lambda ledger: ledger.set_cursor(at(5)))
    assert new.ledger.cursor == at(6 if was_written else 4) == read_ledger(location).cursor


@pytest.fixture
def canal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LedgerLocation, Callable[[str], Any]]]:
    """Returns a location in ZooKeeper, and a function that reads a node of the destination as a client of Canal does."""
    location = location_of("zookeeper39", request, tmp_path)
    client = KazooClient(hosts=location.zookeeper.hosts)
    client.start()

    def look(inside: str) -> Any:
        path = f"/otter/canal/destinations/{location.destination}/{inside}"
        return client.get(path)[0].decode() if client.exists(path) else None

    yield location, look
    client.stop()
    client.close()


@pytest.mark.servers
def test_ha_canal_finds_its_cursor_and_filter_in_zookeeper(canal: tuple[LedgerLocation, Callable[[str], Any]]) -> None:
    location, look = canal
    meta = open_meta(location, Held())
    meta.update(
        lambda ledger: ledger.subscribe(ClientIdentity(destination="shop", filter=r"shop\..*")).set_cursor(at(4))
    )
    assert look("1001/filter") == r"shop\..*"
    assert json.loads(look("1001/cursor")) == {
        "@type": "com.alibaba.otter.canal.protocol.position.LogPosition",
        "identity": {"slaveId": -1, "sourceAddress": {"address": "db.example", "port": 3306}},
        "postion": {
            "gtid": "",
            "included": False,
            "journalName": "mysql-bin.000001",
            "position": at(4).offset,
            "serverId": 0,
            "timestamp": 0,
        },
    }
    meta.update(lambda ledger: handed_out(ledger, at(10)).ack(1))
    assert canal_cursor.from_text(look("1001/cursor")).offset == at(10).offset


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["mixed", "period_mixed"])
def test_ha_a_mixed_ledger_is_in_its_file_and_the_cursor_follows_in_zookeeper(
    canal: tuple[LedgerLocation, Callable[[str], Any]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, look = canal
    monkeypatch.setattr(managers, "PERIOD_SECONDS", 60.0)
    location = dataclasses.replace(location, kind=kind)
    meta = open_meta(location, Held())
    meta.update(lambda ledger: ledger.subscribe(ClientIdentity(destination="shop")).set_cursor(at(4)))
    assert read_ledger(location.directory).cursor == at(4)

    def offset() -> int:
        text = look("1001/cursor")
        return canal_cursor.from_text(text).offset if text else 0

    wait_for("the first cursor", lambda: offset() == at(4).offset or None)
    meta.update(lambda ledger: ledger.set_cursor(at(9)))
    if kind == "mixed":
        wait_for("the second cursor", lambda: offset() == at(9).offset or None)
    else:
        assert offset() == at(4).offset, "a period is not over"
    meta.update(lambda ledger: ledger.set_cursor(at(11)))
    meta.close()
    assert offset() == at(11).offset, "the last one is not lost with a stop"


def test_ha_what_canal_writes_is_read() -> None:
    text = (
        '{"@type":"com.alibaba.otter.canal.protocol.position.LogPosition","identity":{"slaveId":-1,"sourceAddress":'
        '{"address":"127.0.0.1","port":3306}},"postion":{"gtid":"","included":false,"journalName":"mysql-bin.000009",'
        '"position":15154,"serverId":1,"timestamp":1597025212000}}'
    )
    assert canal_cursor.from_text(text) == canal_cursor.CanalCursor(
        file="mysql-bin.000009", offset=15154, time_ms=1597025212000
    )
    for wrong in (
        "[]",
        "{}",
        '{"postion":{"journalName":3}}',
        '{"postion":{}}',
        '{"postion":{"journalName":"a.1","position":-1}}',
    ):
        with pytest.raises(ValueError, match=r"postion|not a|must be|neither"):
            canal_cursor.from_text(wrong)


@pytest.mark.servers
@pytest.mark.parametrize("kept", [False, True])
def test_ha_a_connection_that_breaks_during_a_commit_leaves_one_valid_record(
    request: pytest.FixtureRequest, tmp_path: Path, kept: bool
) -> None:
    """The database may have stored the write whose answer is lost, or may never have received it. The next write continues from the real
    state.
    """
    location = location_of("postgres16", request, tmp_path)
    port = request.getfixturevalue("postgres16").port
    with Proxy(port) as line:
        meta = open_meta(dataclasses.replace(location, url=location.url.replace(f":{port}/", f":{line.port}/")), Held())
        meta.update(lambda ledger: ledger.set_cursor(at(4)))

        def lost(piece: bytes) -> bytes:
            if b"UPDATE" not in piece:
                return piece
            line.tamper = line.requested = bytes
            raise ConnectionResetError

        if kept:
            line.tamper = lost
        else:
            line.requested = lost
        with pytest.raises(NotSharedError, match="Sluice tries again"):
            meta.update(lambda ledger: ledger.set_cursor(at(5)))
        assert meta.ledger.cursor == at(4), "its caller was told that it is not kept"
        assert read_ledger(location).cursor == (at(5) if kept else at(4))
        meta.update(lambda ledger: ledger.begin_epoch(ledger.epoch + 1))
        assert read_ledger(location) == meta.ledger
        assert meta.ledger.cursor == at(4)
