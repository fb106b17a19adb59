"""Tests that a run can call its engine as `ports.RunEngine` describes, over real connections: to the code server of the run's host, and
over TLS to two engine hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import (
    BatchNotFoundError,
    EngineStartingError,
    LeaseLostError,
    MetaError,
    SluiceError,
    StagingError,
)
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import EngineAwayError
from sluice.orchestration.base.testing import FakeEngine, FakeHost
from sluice.orchestration.rpc import connection
from sluice.orchestration.rpc.remote_host import RemoteHost
from sluice.orchestration.rpc.run_caller import RunCaller, caller_of_code_server, caller_of_hosts
from sluice.orchestration.rpc.run_endpoint import RunEndpoint
from sluice.orchestration.rpc.served_engine import ServedEngines
from tests.certificates import make_certificate
from tests.orchestration.rpc.fix_host import config_at, server_of


class EngineAndRun:
    """An engine, its server, and a run that calls it."""

    caller: RunCaller

    def __init__(self, root: Path) -> None:
        self.directory = root / "shop"
        self.directory.mkdir()
        self.engine = FakeEngine(root)
        self.host = FakeHost(self.engine)
        self.closing = False

    def tick(self, failed: str = "") -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class CodeServer(EngineAndRun):
    """The engine is in the code server, and the run is on the same host."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.endpoint = RunEndpoint(ServedEngines(lambda: self.host, lambda: self.closing))
        self.tick()
        self.caller = caller_of_code_server(self.directory, "shop")

    def tick(self, failed: str = "") -> None:
        if not failed:
            self.endpoint.open_for(self.directory)

    def close(self) -> None:
        self.endpoint.close()


class EngineHosts(EngineAndRun):
    """Provides two engine hosts with TLS that share one ledger. The second host is on standby. The run has conf/, and no access to the data
    directory.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        certificate, key = make_certificate(root)
        self.second = FakeHost(self.engine)
        self.second.holder = 7
        config = config_at(root, 1, certificate_file=certificate, key_file=key)
        self.servers = [server_of(each, config, closing=lambda: self.closing) for each in (self.host, self.second)]
        self.hosts = RemoteHost(config_at(root, *(each.port for each in self.servers), ca_file=certificate))
        self.caller = caller_of_hosts(self.hosts, "shop")
        self.tick()

    def tick(self, failed: str = "") -> None:
        self.hosts.get_or_start("shop").report_tick(failed)

    def fail_over(self) -> None:
        self.host.holder, self.second.holder = 7, None

    def close(self) -> None:
        self.hosts.close()
        for server in self.servers:
            server.close(0.0)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[EngineHosts]:
    made = EngineHosts(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[CodeServer, EngineHosts])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineAndRun]:
    made: EngineAndRun = request.param(tmp_path)
    yield made
    made.close()


def offered(remote: EngineAndRun) -> BatchReference:
    """Captures five changes, and returns the reference of the batch that a draining run gets with them."""
    remote.engine.capture(5)
    reference = remote.caller.hand_out(0.0).reference
    assert reference is not None
    return reference


def appendable(remote: EngineAndRun) -> tuple[OutstandingBatch, BatchReference]:
    """Returns a batch of five changes whose end is not fixed, and adds one more change."""
    remote.engine.capture(5)
    batch = remote.engine.hand_out(0.0, appendable=True)
    assert batch is not None
    remote.engine.capture(1)
    return batch, BatchReference.of("shop", batch)


def test_ha_batches_are_handed_out_and_acked_by_reference(remote: EngineAndRun) -> None:
    assert remote.caller.hand_out(0.0).reference is None
    reference = offered(remote)
    assert remote.engine.head is not None
    assert reference == BatchReference.of("shop", remote.engine.head)
    assert remote.caller.hand_out(0.0).reference == reference, "repeatable"
    remote.caller.ack(reference)
    assert remote.engine.acked == [1]
    with pytest.raises(BatchNotFoundError):
        remote.caller.ack(reference)


def test_ha_a_batch_of_another_ledger_or_delivery_is_neither_acked_nor_taken(remote: EngineAndRun) -> None:
    reference = offered(remote)
    for other in ({"ledger": "ffffffffffff"}, {"delivery": 7}, {"batch": 5}, {"first_end": 3}):
        wrong = BatchReference(**{**reference.to_config(), **other})
        with pytest.raises(BatchNotFoundError):
            remote.caller.ack(wrong)
        with pytest.raises(BatchNotFoundError):
            remote.caller.take(wrong, append=True)
    assert remote.engine.acked == []


@pytest.mark.parametrize("why", ["", "not wanted", "the process is to end"])
def test_ha_a_batch_is_taken_with_what_came_unless_the_process_is_to_end(remote: EngineAndRun, why: str) -> None:
    batch, reference = appendable(remote)
    remote.closing = why == "the process is to end"
    remote.caller.take(reference, append=why != "not wanted")
    taken = remote.engine.head
    assert taken is not None
    assert (taken.appendable, taken.end.offset - batch.end.offset) == (False, 0 if why else 1)
    remote.closing = False
    remote.caller.take(reference, append=True)
    assert remote.engine.head == taken, "repeatable"
    remote.caller.ack(reference)
    with pytest.raises(BatchNotFoundError):
        remote.caller.take(reference, append=True)


def test_ha_a_batch_that_is_handed_out_to_a_run_has_a_fixed_end(remote: EngineAndRun) -> None:
    _, reference = appendable(remote)
    assert remote.caller.hand_out(0.0).reference == reference
    assert remote.engine.head is not None
    assert not remote.engine.head.appendable


@pytest.mark.found
@pytest.mark.parametrize("rolled_back_first", [True, False])
def test_ha_a_request_whose_answer_is_late_leaves_one_batch_whatever_comes_first(
    remote: EngineAndRun, monkeypatch: pytest.MonkeyPatch, rolled_back_first: bool
) -> None:
    """Defect 3: a run whose request got no answer in time merged the batch as it was. The engine still executed the request later, and
    replaced the batch.
    """
    batch, reference = appendable(remote)
    take, may_end, ended = remote.engine.take, threading.Event(), threading.Event()

    def late(batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        assert may_end.wait(60)
        try:
            return take(batch, append=append)
        finally:
            ended.set()

    remote.engine.take = late  # type: ignore[method-assign]
    monkeypatch.setattr(connection, "ANSWER_SECONDS_MAX", 0.5)
    with pytest.raises(EngineAwayError, match=r"has not answered for 0\.5 s"):
        remote.caller.take(reference, append=True)
    monkeypatch.undo()
    if rolled_back_first:
        remote.engine.rollback(batch)
    may_end.set()
    assert ended.wait(60)
    assert remote.engine.head is not None
    assert (remote.engine.head.delivery, remote.engine.head.appendable) == (2 if rolled_back_first else 1, False)
    assert (remote.engine.head.end == batch.end) is rolled_back_first


@pytest.mark.parametrize("error", [MetaError("the ledger did not answer"), LeaseLostError("process 7 holds the lease")])
def test_ha_a_request_whose_outcome_the_engine_does_not_know_is_an_error(
    remote: EngineAndRun, error: SluiceError
) -> None:
    _, reference = appendable(remote)

    def fail(_: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        raise error

    remote.engine.take = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(type(error), match=str(error)):
        remote.caller.take(reference, append=True)


@pytest.mark.parametrize("error", [StagingError("no space left"), EngineStartingError("it is being started")])
def test_ha_an_error_of_the_engine_is_raised_in_the_run(remote: EngineAndRun, error: SluiceError) -> None:
    remote.host.error = error
    with pytest.raises(type(error), match=str(error)):
        remote.caller.hand_out(0.0)
    remote.host.error = None
    assert remote.caller.hand_out(0.0).reference is None


def test_ha_a_process_that_is_to_end_sends_runs_away_and_still_settles(remote: EngineAndRun) -> None:
    reference = offered(remote)
    remote.closing = True
    assert remote.caller.hand_out(0.0).leave == "the engine's process is stopping"
    remote.caller.ack(reference)
    assert remote.engine.acked == [1]


def test_ha_while_the_sensor_is_off_nothing_is_handed_out(
    remote: EngineAndRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("sluice.orchestration.rpc.served_engine.time", SimpleNamespace(monotonic=lambda: clock[0]))
    remote.tick()
    remote.engine.capture(5)
    clock[0] += 31
    remote.tick("its storage does not answer")
    offer = remote.caller.hand_out(0.0)
    assert offer.reference is None
    assert "switched off" in offer.leave
    assert remote.engine.head is None
    remote.tick()
    assert remote.caller.hand_out(0.0).reference is not None


# ── engine hosts ──


@pytest.mark.parametrize("how", ["its lease is lost", "it is killed"])
def test_ha_a_run_continues_with_the_host_that_took_over(hosts: EngineHosts, how: str) -> None:
    """The first request at a host counts as a tick, because no tick has reached this host yet."""
    reference = offered(hosts)
    hosts.fail_over()
    if how == "it is killed":
        hosts.servers[0].close(0.0)
    hosts.caller.ack(reference)
    assert hosts.engine.acked == [1]
    assert offered(hosts).delivery == 2


def test_ha_between_two_hosts_no_engine_answers_and_nothing_is_lost(hosts: EngineHosts) -> None:
    reference = offered(hosts)
    hosts.host.holder = 9
    with pytest.raises(LeaseLostError):
        hosts.caller.ack(reference)
    hosts.servers[0].close(0.0)
    hosts.servers[1].close(0.0)
    with pytest.raises(EngineAwayError, match="does not answer"):
        hosts.caller.ack(reference)
    assert hosts.engine.acked == []
    assert hosts.engine.head is not None


class Fenced:
    """An engine whose host is suspended during an ack and loses its lease meanwhile. The ledger refuses its write."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine, self.goes_on, self.refused = engine, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def ack(self, batch: OutstandingBatch) -> None:
        assert self.goes_on.wait(60)
        self.refused.set()
        raise LeaseLostError(f"another process may have acked delivery {batch.delivery}")


def test_ha_the_late_answer_of_a_host_that_lost_its_lease_settles_nothing(
    hosts: EngineHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = offered(hosts)
    fenced: Any = Fenced(hosts.engine)
    hosts.host.engine = fenced
    monkeypatch.setattr(connection, "ANSWER_SECONDS_MAX", 0.5)
    with pytest.raises(EngineAwayError, match="has not answered"):
        hosts.caller.ack(reference)
    monkeypatch.undo()
    hosts.fail_over()
    hosts.caller.ack(reference)
    fenced.goes_on.set()
    assert fenced.refused.wait(60)
    assert hosts.engine.acked == [1]


def test_ha_runs_of_another_authority_or_without_tls_are_not_answered(hosts: EngineHosts, tmp_path: Path) -> None:
    for name, trusted in (("plain", {}), ("strange", {"ca_file": True})):
        folder = tmp_path / name
        folder.mkdir()
        authority = {"ca_file": make_certificate(folder)[0]} if trusted else {}
        strange = RemoteHost(config_at(tmp_path, hosts.servers[0].port, **authority))
        with pytest.raises(EngineAwayError, match="does not answer"):
            caller_of_hosts(strange, "shop").hand_out(0.0)
        strange.close()
