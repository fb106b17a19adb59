"""Tests a draining run on another host than the code server. The definitions are real, and so is the RPC with TLS to two engine hosts.
The engine, the locks and the merge are fakes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine import limits
from sluice.orchestration.base.ports import RunEngine
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.rpc.run_caller import caller_of_code_server
from sluice.orchestration.run import drain_run
from tests.orchestration.rpc.test_run_caller_ha import EngineHosts
from tests.orchestration.run.test_drain_run import Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(limits, "DRAIN_IDLE_SECONDS_MAX", 0.01)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Shop(tmp_path, instance)


@pytest.fixture
def hosts(shop: Shop, tmp_path: Path) -> Iterator[EngineHosts]:
    """Returns two hosts that have the shop's engine one after the other, because its ledger is the same."""
    made = EngineHosts(tmp_path)
    made.engine = made.host.engine = made.second.engine = shop.engine
    yield made
    made.close()


def run(shop: Shop, caller: RunEngine) -> Any:
    ports = dataclasses.replace(shop.fakes.ports(), run_engine=lambda _directory, _destination: caller)
    shop.defs = build_definitions(shop.config, ports)
    return shop.run()


def at_merge(shop: Shop, *steps: Callable[[], None]) -> None:
    """Calls the next of `steps` during each merge."""
    left = iter(steps)
    shop.fakes.merge.between = lambda name: next(left, lambda: None)() if name == "shop.orders" else None


def said(shop: Shop, result: Any) -> str:
    return "\n".join(entry.user_message or "" for entry in shop.instance.all_logs(result.run_id))


def test_ha_a_run_on_another_host_merges_and_settles_batch_after_batch(shop: Shop, hosts: EngineHosts) -> None:
    at_merge(shop, lambda: shop.engine.capture(5), lambda: shop.engine.capture(5))
    result = run(shop, hosts.caller)
    assert result.success
    assert shop.engine.acked == [1, 2, 3]
    assert "no changes arrived for" in said(shop, result)


@pytest.mark.parametrize("how", ["its lease is lost", "it is killed"])
def test_ha_a_run_stays_attached_while_engine_hosts_fail_over(shop: Shop, hosts: EngineHosts, how: str) -> None:
    def fail_over() -> None:
        hosts.fail_over()
        if how == "it is killed":
            hosts.servers[0].close(0.0)
        shop.engine.capture(5)

    at_merge(shop, lambda: shop.engine.capture(5), fail_over)
    assert run(shop, hosts.caller).success
    assert shop.engine.acked == [1, 2, 3], "each batch once, the last two by the second host"


def test_ha_a_run_that_no_host_answers_ends_well_and_leaves_its_batch_to_the_ticks(
    shop: Shop, hosts: EngineHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The takeover by another host takes the duration of a session. The run does not wait that long for an answer."""
    monkeypatch.setattr(drain_run, "ANSWER_SECONDS_MAX", 0.1)

    def stand_by() -> None:
        hosts.host.holder = 9
        shop.engine.capture(5)

    at_merge(shop, lambda: shop.engine.capture(5), stand_by)
    result = run(shop, hosts.caller)
    assert result.success
    assert shop.engine.acked == [1]
    assert shop.tag(result).endswith(":2"), "a tick finds a SUCCESS of the batch that it merged"
    assert "the next tick settles what the run merged" in said(shop, result)


def test_ha_a_host_that_ends_requests_that_its_run_ends(shop: Shop, hosts: EngineHosts) -> None:
    def end() -> None:
        hosts.closing = True
        shop.engine.capture(5)

    at_merge(shop, end)
    result = run(shop, hosts.caller)
    assert result.success
    assert shop.engine.acked == [1], "it is settled all the same"
    assert shop.engine.head is None, "nothing is handed out to nobody"
    assert "this run ends: the engine's process is stopping" in said(shop, result)


def test_ha_a_run_on_another_host_than_an_embedded_engine_says_which_setting_it_needs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run does not drain. It merges its batch, and a tick settles the batch because the run succeeded."""
    monkeypatch.setattr(drain_run, "ANSWER_SECONDS_MAX", 0.1)
    result = run(shop, caller_of_code_server(tmp_path / "not here", "shop"))
    assert result.success
    assert (len(shop.merged()), shop.engine.acked) == (1, [])
    assert shop.engine.head is not None
    assert shop.tag(result).endswith(":1")
    assert "for runs on other hosts set engine: {kind: remote} with TLS in conf/sluice.yaml" in said(shop, result)
