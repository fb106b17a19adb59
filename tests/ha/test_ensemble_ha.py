"""Tests a lease in three ZooKeeper nodes. If their leader dies, the holder renews its lease. If two nodes die, no host has the lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.servers.zookeeper import ZooKeeperEnsemble
from sluice.cdc_engine.contracts import LedgerLocation, ZooKeeperServers
from sluice.cdc_engine.errors import LeaseLostError, SluiceError
from sluice.cdc_engine.ha.leases import open_lease
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.managers import open_meta, read_ledger
from sluice.cdc_engine.ports import Lease
from tests.fix_ledgers import at
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

SECONDS = 6.0  # The length of a session. An election takes one or two seconds.


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    nodes = ZooKeeperEnsemble(tmp_path / "zookeeper")
    try:
        yield nodes.start()
    finally:
        nodes.stop()


def succeeds(act: Callable[[], object]) -> bool:
    try:
        act()
    except SluiceError:
        return False
    return True


def moves_to(meta: MetaManager, index: int) -> Callable[[], object]:
    return lambda: meta.update(lambda ledger: ledger.set_cursor(at(index)))


# Each failover waits until a ZooKeeper session expires.
@pytest.mark.timeout(600)
def test_ha_failover_of_three_zookeeper_nodes(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> None:
    location = LedgerLocation(
        destination="shop",
        directory=tmp_path / "shop",
        kind="zookeeper",
        zookeeper=ZooKeeperServers(hosts=ensemble.hosts),
        source=("db.example", 3306),
        session_seconds=SECONDS,
        address="host-a:4266",
    )
    holder, standby = open_lease(location), open_lease(location)
    try:
        assert holder.try_acquire()
        first = open_meta(location, holder)
        moves_to(first, 4)()
        _the_leader_dies(ensemble, holder, standby)
        second = open_meta(location, holder)
        moves_to(second, 5)()
        _no_majority(ensemble, second, holder, standby)
        assert read_ledger(location).cursor == at(5)
        moves_to(open_meta(location, standby), 9)()
        for stale in (first, second):
            with pytest.raises(SluiceError):
                moves_to(stale, 7)()
        assert read_ledger(location).cursor == at(9), "what a stale holder wrote is nowhere"
    finally:
        for lease in (holder, standby):
            lease.release()


def _the_leader_dies(ensemble: ZooKeeperEnsemble, holder: Lease, standby: Lease) -> None:
    """Kills the leader of the nodes. The other two nodes elect a leader before the session ends. The holder renews the lease with a higher
    token, and no other host can take it.
    """
    leader, before = ensemble.leader, holder.token
    leader.kill()
    # Until the holder's connection breaks, the holder still has the lease with the earlier token. So the test waits for a higher token.
    wait_for("the holder has it again", lambda: succeeds(lambda: _acquired(holder)) and holder.token > before, 60)
    assert not succeeds(lambda: _acquired(standby))
    leader.start()


def _no_majority(ensemble: ZooKeeperEnsemble, meta: MetaManager, holder: Lease, standby: Lease) -> None:
    """Kills two nodes, so that the holder gets no answer and loses its lease. The standby cannot take the lease until the nodes run."""
    before = holder.token
    gone = [node for node in ensemble.nodes if node.mode() != "leader"]
    for node in gone:
        node.kill()
    wait_for("the holder knows that it holds nothing", lambda: not succeeds(holder.check), 60)
    assert not succeeds(lambda: _acquired(standby))
    with pytest.raises(SluiceError):
        moves_to(meta, 7)()
    for node in gone:
        node.start()
    with pytest.raises(LeaseLostError):
        holder.check()  # The lease is not returned automatically. The former holder requests it like every other host.
    wait_for("the holder has it again", lambda: succeeds(lambda: _acquired(holder)), 60)
    again = holder.token
    holder.release()
    wait_for("the standby has it", lambda: succeeds(lambda: _acquired(standby)), 60)
    assert before < again < standby.token


def _acquired(lease: Lease) -> None:
    if not lease.try_acquire():
        raise LeaseLostError("another has it")
