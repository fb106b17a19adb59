"""Tests, with one suite on real servers, every lease that several hosts share. It has one holder, and its tokens rise. A host that was
away too long notices that it lost the lease.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import create_engine, event

from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation, ZooKeeperServers
from sluice.cdc_engine.destination_files import RunLockTimeoutError, head_of_line, run_lock, run_lock_held
from sluice.cdc_engine.destination_files.run_lock import RunLockLostError
from sluice.cdc_engine.errors import LeaseLostError, NotSharedError, SluiceError
from sluice.cdc_engine.ha import beat_lock, leases, session, zookeeper_lock
from sluice.cdc_engine.ha.beat_lock import BeatLock
from sluice.cdc_engine.ha.leases import RUN_LOCK, open_lease, open_lock, read_holder
from sluice.cdc_engine.ha.zookeeper_lock import ZooKeeperLock
from sluice.cdc_engine.meta.managers import open_meta, read_ledger
from sluice.cdc_engine.ports import Lease
from sluice.cdc_engine.records.contract import NOT_THERE
from sluice.cdc_engine.records.sql import SqlRecordStore
from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore
from sluice.cdc_engine.records.zookeeper_client import shared_client
from tests.fix_ledgers import at
from tests.parser.proxy import Proxy
from tests.waiting import wait_for

SHARED = tuple(pytest.param(kind, marks=pytest.mark.servers) for kind in ("postgres16", "zookeeper39"))
KINDS = ("file", *SHARED)
SECONDS = 2.0  # The length of a session.


def location_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    location = LedgerLocation(
        destination=name, directory=tmp_path / name, session_seconds=SECONDS, address="host-a:4266"
    )
    match kind:
        case "zookeeper39":
            return dataclasses.replace(
                location, kind="zookeeper", zookeeper=ZooKeeperServers(hosts=request.getfixturevalue(kind).hosts)
            )
        case "postgres16":
            return dataclasses.replace(location, kind="sql", url=request.getfixturevalue(kind).url)
        case _:
            return location


@pytest.fixture(params=KINDS)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    return location_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    return location_of(request.param, request, tmp_path)


Opener = Callable[[LedgerLocation], Lease]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Returns a function that opens leases. All of them are released when the test ends."""
    made: list[Lease] = []

    def open_one(location: LedgerLocation) -> Lease:
        made.append(open_lease(location))
        return made[-1]

    yield open_one
    for lease in made:
        lease.release()


def holds(lease: Lease) -> bool:
    try:
        lease.check()
    except LeaseLostError:
        return False
    return True


def test_ha_one_holder_at_a_time_and_each_has_a_higher_token(location: LedgerLocation, opened: Opener) -> None:
    tokens = []
    first, second = opened(location), opened(location)
    for _ in range(3):
        assert first.try_acquire()
        assert first.try_acquire()
        first.check()
        assert not second.try_acquire()
        with pytest.raises(LeaseLostError, match=f"the lease of {location.destination}"):
            second.check()
        tokens.append(first.token)
        holder = read_holder(location)
        assert holder is not None
        assert (holder.pid, holder.token, holder.held) == (os.getpid(), first.token, True)
        first.release()
        first.release()
        assert first.token == 0
        with pytest.raises(LeaseLostError):
            first.check()
        holder = read_holder(location)
        assert holder is not None
        assert not holder.held
        first, second = second, first
    assert tokens == [1, 2, 3]


def test_ha_of_many_that_want_it_one_gets_it(location: LedgerLocation, opened: Opener) -> None:
    leases = [opened(location) for _ in range(5)]
    got: list[Lease] = []
    threads = [
        threading.Thread(target=lambda one=one: got.append(one) if one.try_acquire() else None) for one in leases
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    got[0].check()


HOLDER = """
import pickle, sys
from sluice.cdc_engine.ha.leases import open_lease
location = pickle.loads(bytes.fromhex(sys.argv[1]))
lease = open_lease(location)
print(lease.try_acquire(), lease.token, flush=True)
for line in sys.stdin:
    try:
        lease.check()
        print("holds", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


@contextmanager
def holding_process(
    location: LedgerLocation, script: str = HOLDER
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Starts a process that holds the lease. Yields the process, and a function that returns the next line of its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, pickle.dumps(location).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    output = process.stdout
    assert output is not None
    try:
        yield process, lambda: output.readline().decode().strip()
    finally:
        process.kill()
        process.communicate()


def test_ha_a_killed_holder_is_followed_by_a_standby(location: LedgerLocation, opened: Opener) -> None:
    standby = opened(location)
    with holding_process(location) as (process, said):
        assert said() == "True 1"
        assert not standby.try_acquire()
        process.kill()
        process.wait()
        wait_for("the standby has it", standby.try_acquire, 30)
        assert standby.token == 2
        standby.check()


@pytest.mark.servers
def test_ha_a_process_that_stood_still_for_longer_than_its_session_knows_it_at_once(
    shared: LedgerLocation, opened: Opener
) -> None:
    standby = opened(shared)
    with holding_process(shared) as (process, said):
        assert said() == "True 1"
        process.send_signal(signal.SIGSTOP)
        wait_for("the standby has it", standby.try_acquire, 30)
        assert process.stdin is not None
        process.stdin.write(b"?\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert said() == "LeaseLostError", "its first act after the pause is refused, before anybody told it"
        standby.check()


@pytest.mark.servers
def test_ha_a_holder_continues_for_many_sessions(shared: LedgerLocation, opened: Opener) -> None:
    lease, other = opened(shared), opened(shared)
    assert lease.try_acquire()
    end = session.now() + 2.5 * SECONDS
    while session.now() < end:
        assert holds(lease)
        assert not other.try_acquire()
        threading.Event().wait(0.2)
    assert lease.token == 1


@pytest.mark.servers
def test_ha_clocks_that_jump_change_nothing(
    shared: LedgerLocation, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day is only shown to people. Neither a holder nor a watcher decides by it."""
    lease, other = opened(shared), opened(shared)
    assert lease.try_acquire()
    for day in (1e9, 4e9):
        monkeypatch.setattr("time.time", lambda day=day: day)
        assert holds(lease)
        assert not other.try_acquire()
    lease.release()
    assert other.try_acquire()
    assert other.token == 2


@pytest.mark.servers
def test_ha_an_old_holder_cannot_write_the_ledger_however_late(shared: LedgerLocation, opened: Opener) -> None:
    """The old holder checks its lease, is suspended, and then writes. The write fails, because the version that it replaces is gone."""
    old, new = opened(shared), opened(shared)
    assert old.try_acquire()
    ledger = open_meta(shared, old)
    ledger.update(lambda now: now.set_cursor(at(4)))

    def paused(now: object) -> None:
        old.release()
        assert new.try_acquire()
        open_meta(shared, new).update(lambda ledger: ledger.set_cursor(at(7)))

    checked = old.check
    old.check = lambda: (checked(), paused(None))  # type: ignore[method-assign,assignment,func-returns-value]
    late = open_meta(shared, old)
    with pytest.raises(LeaseLostError, match="was written by the holder of lease 2"):
        late.update(lambda now: now.set_cursor(at(9)))
    assert read_ledger(shared).cursor == at(7)


@pytest.mark.servers
def test_ha_a_writer_that_is_paused_after_a_statement_prevents_no_other_from_writing(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    location = location_of("postgres16", request, tmp_path)
    one, other = SqlRecordStore(location.url, location.destination), SqlRecordStore(location.url, location.destination)
    other._engine = create_engine(one._engine.url, isolation_level="AUTOCOMMIT")
    written: list[str] = []

    def meanwhile(*_: object) -> None:
        if not written:
            written.append("one")
            written.append(str(other.write("ledger", "of the other", version=2)))

    one.write("ledger", "first", version=NOT_THERE)
    event.listen(one._engine, "after_cursor_execute", meanwhile)
    try:
        assert one.write("ledger", "second", version=1) == 2
    finally:
        event.remove(one._engine, "after_cursor_execute", meanwhile)
        other._engine.dispose()
    assert written == ["one", "3"]


@pytest.mark.servers
def test_ha_a_session_of_zookeeper_that_has_ended_owns_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Opener
) -> None:
    lease: Any = opened(location_of("zookeeper39", request, tmp_path))
    assert lease.try_acquire()
    lock = lease._lock
    client = lock._client
    assert lock._is_ours(client)
    ended = mock.Mock(wraps=client, client_id=None)
    assert not lock._is_ours(ended)


def test_ha_the_run_lock_lets_one_run_in_over_all_hosts(location: LedgerLocation) -> None:
    directory = DestinationDir.of(location)
    assert not run_lock_held(directory)
    with run_lock(directory):
        assert run_lock_held(directory)
        with pytest.raises(RunLockTimeoutError, match="another run of"), run_lock(directory, 0.01):
            pass
    assert not run_lock_held(directory)
    with run_lock(directory):
        pass


RUN = """
import pickle, sys
from sluice.cdc_engine.contracts import DestinationDir
from sluice.cdc_engine.destination_files import head_of_line, run_lock
location = pickle.loads(bytes.fromhex(sys.argv[1]))
with run_lock(DestinationDir.of(location)):
    print("in", flush=True)
    for line in sys.stdin:
        try:
            print(head_of_line(DestinationDir.of(location)), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
"""


@pytest.mark.servers
def test_ha_a_run_that_stood_still_writes_no_further_table(shared: LedgerLocation) -> None:
    directory = DestinationDir.of(shared)
    with holding_process(shared, RUN) as (process, said):
        assert said() == "in"
        assert run_lock_held(directory)
        process.send_signal(signal.SIGSTOP)
        with run_lock(directory, 30.0):
            assert process.stdin is not None
            process.stdin.write(b"?\n")
            process.stdin.flush()
            process.send_signal(signal.SIGCONT)
            assert said() == "RunLockLostError"
            assert head_of_line(directory) is None  # This is the batch of this ledger.


@pytest.mark.servers
def test_ha_a_killed_run_is_seen_to_be_gone(shared: LedgerLocation) -> None:
    directory = DestinationDir.of(shared)
    with holding_process(shared, RUN) as (process, said):
        assert said() == "in"
        assert run_lock_held(directory)
        process.kill()
        process.wait()
        wait_for("the lock is free", lambda: not run_lock_held(directory), 30)
    lock = open_lock(directory, RUN_LOCK)
    assert lock.try_acquire()
    lock.release()


@pytest.mark.servers
def test_ha_the_running_node_is_what_canal_expects(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Opener
) -> None:
    location = location_of("zookeeper39", request, tmp_path)
    lease = opened(location)
    assert lease.try_acquire()
    nodes = ZooKeeperRecordStore(location.zookeeper, location.destination, SECONDS)
    assert nodes.canal("running") == '{"active":true,"address":"host-a:4266"}'
    client = shared_client(location.zookeeper, SECONDS)
    ours = client.exists(f"/otter/canal/destinations/{location.destination}/running").ephemeralOwner
    for path in (
        f"/otter/canal/destinations/{location.destination}/cluster/host-a:4266",
        "/otter/canal/cluster/host-a:4266",
    ):
        assert client.exists(path).ephemeralOwner, path
    assert ours
    client.set(f"/otter/canal/destinations/{location.destination}/running", b'{"active":false,"address":"host-a:4266"}')
    wait_for("an administrator takes it away", lambda: not holds(lease), 30)
    lease.release()
    other = opened(dataclasses.replace(location, address="host-b:4266"))
    wait_for("another has it", other.try_acquire, 30)


@pytest.mark.parametrize("kind", ["sql", "zookeeper"])
def test_ha_if_the_store_does_not_answer_the_error_names_it_and_no_lock_is_held(
    tmp_path: Path, kind: str, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.cdc_engine.records.zookeeper_client.CONNECT_SECONDS_MAX", 0.5)
    location = LedgerLocation(
        destination="shop",
        directory=tmp_path / "shop",
        kind=kind,
        zookeeper=ZooKeeperServers(hosts="127.0.0.1:1"),
        url="postgresql://a@127.0.0.1:1/b",
    )
    with pytest.raises(SluiceError, match=r"no ZooKeeper of 127\.0\.0\.1:1 answers|cannot be opened"):
        opened(location).try_acquire()


def through(location: LedgerLocation, line: Proxy) -> LedgerLocation:
    """Returns the same location, reached over a separate connection."""
    if location.kind == "zookeeper":
        return dataclasses.replace(location, zookeeper=ZooKeeperServers(hosts=f"127.0.0.1:{line.port}"))
    return dataclasses.replace(location, url=location.url.replace(f":{_port_of(location)}/", f":{line.port}/"))


def _port_of(location: LedgerLocation) -> int:
    where = location.zookeeper.hosts if location.kind == "zookeeper" else location.url.rpartition("/")[0]
    return int(where.rpartition(":")[2])


@pytest.mark.servers
def test_ha_a_connection_that_breaks_every_two_seconds_gives_no_other_host_the_lease(
    shared: LedgerLocation, opened: Opener
) -> None:
    """The holder continues, or reports that it does not hold the lease. There are never two holders."""
    shared = dataclasses.replace(shared, session_seconds=6.0)
    with Proxy(_port_of(shared)) as line:
        lease, other = opened(through(shared, line)), opened(shared)
        assert lease.try_acquire()
        end, disconnect_at = session.now() + 8, session.now() + 2
        while session.now() < end:
            if session.now() >= disconnect_at:
                disconnect_at += 2
                line.disconnect()
            other_has_it = succeeds(other.try_acquire)
            assert not (other_has_it and holds(lease))
            if other_has_it:
                other.release()
            succeeds(lease.try_acquire)
            threading.Event().wait(0.1)
        wait_for("it has the lease when all is well again", lambda: succeeds(lease.try_acquire), 30)


def succeeds(act: Callable[[], bool]) -> bool:
    """Returns False also if nobody answers."""
    try:
        return act()
    except SluiceError:
        return False


@pytest.mark.servers
def test_ha_a_database_that_takes_seconds_to_answer_is_no_lost_lease_until_it_takes_too_long(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Opener
) -> None:
    location = dataclasses.replace(location_of("postgres16", request, tmp_path), session_seconds=5.0)
    delay = [0.4]

    def slow(piece: bytes) -> bytes:
        threading.Event().wait(delay[0])
        return piece

    with Proxy(_port_of(location)) as line:
        lease, other = opened(through(location, line)), opened(location)
        assert lease.try_acquire()
        line.tamper = slow
        end = session.now() + 7
        while session.now() < end:
            assert holds(lease)
            assert not other.try_acquire()
            threading.Event().wait(0.2)
        delay[0] = 4.0
        wait_for("another has it", other.try_acquire, 30)
        assert not holds(lease)
        delay[0] = 0.0


def take_away(location: LedgerLocation, name: str) -> None:
    """Removes the lock, as the end of a session does. A lock in a record store is free by itself when nobody renews it."""
    if location.kind == "zookeeper":
        shared_client(location.zookeeper, SECONDS).delete(leases._nodes(location, name).held)


@pytest.mark.found
def test_ha_the_fence_queries_the_store_of_the_lock_and_ignores_the_clock(
    shared: LedgerLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 5: a run trusted its own clock to know whether it has the run lock. The clock of a virtual machine stops while the machine is
    paused.
    """
    for room in (beat_lock, zookeeper_lock):
        monkeypatch.setattr(room, "CONFIRM_PART", 1e6)  # No renewal arrives meanwhile.
    monkeypatch.setattr(session, "TRUSTED_PART", 1e6)  # For the run, no time passes.
    directory, other = DestinationDir.of(shared), open_lock(shared, RUN_LOCK)
    with pytest.raises(RunLockLostError), run_lock(directory) as fence:  # noqa: PT012  it tells at its end too
        assert [fence() for _ in range(3)] == [""] * 3, "it is confirmed as often as it is asked for"
        assert not other.try_acquire()
        take_away(shared, RUN_LOCK)
        wait_for("another host takes it", other.try_acquire, 60)
        assert f"does not hold the run lock of {shared.destination} any more" in fence()
        with pytest.raises(RunLockLostError):
            head_of_line(directory)
        assert other.confirm()
    other.release()


@pytest.mark.found
def test_ha_a_fence_without_an_answer_refuses(shared: LedgerLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test for defect 5: if the lock cannot be checked, nobody knows whether a run may write."""
    with run_lock(DestinationDir.of(shared)) as fence:
        with monkeypatch.context() as patch:
            for kind in (BeatLock, ZooKeeperLock):
                patch.setattr(kind, "confirm", mock.Mock(side_effect=NotSharedError("no server answers")))
            assert "cannot confirm that it still holds the run lock" in fence()
        assert fence() == ""
