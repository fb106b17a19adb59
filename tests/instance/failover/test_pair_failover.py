"""A pair of real servers under an engine: the master dies amid a batch that was merged in part, a standby takes over, and back again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_engine.source.in_use import address_in_use, use
from tests.fix_servers import ServerFactory
from tests.instance.failover.fix_pair import Pair, run
from tests.waiting import wait_for


@pytest.fixture(params=["mysql-8.0.31", "mariadb-11.4.5"])
def pair(request: pytest.FixtureRequest, fresh_server: ServerFactory, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(request.param, fresh_server, tmp_path)
    yield made
    made.slot.stop()


def test_failover_to_the_standby_and_back_loses_nothing_and_brings_nothing_twice(pair: Pair) -> None:
    first, second = pair.first, pair.second
    wait_for("the engine runs", lambda: (engine := pair.engine()) is not None and engine.status().state == "RUNNING")
    pair.write(first)
    pair.settle()

    run(second, "STOP SLAVE")
    pair.write(first)
    pair.settle()
    first.kill()
    wait_for("the standby is refused by name", lambda: "has not executed" in " ".join(pair.troubles()))
    assert address_in_use(pair.directory) == ""
    first.restart()
    wait_for("the master is well again", lambda: pair.troubles() == ())

    run(second, "START SLAVE")
    pair.write(first)
    batch = pair.next_batch()
    pair.lake.merge(pair.directory / batch.path, ["numbers"])  # and the run dies
    pair.wait_until_replicated(second)
    first.kill()
    wait_for("the standby is read", lambda: address_in_use(pair.directory) == f"127.0.0.1:{second.port}")
    pair.promote(second)
    pair.write(second)
    pair.settle()
    pair.check()
    assert pair.epoch() == 2

    first.restart()
    pair.replicate(second, first)
    pair.write(second)
    pair.wait_until_replicated(first)
    batch = pair.next_batch()
    pair.lake.merge(pair.directory / batch.path, ["notes"])
    use(pair.directory, f"127.0.0.1:{first.port}", "by command")
    pair.promote(first)
    pair.write(first)
    pair.settle()
    pair.check()
    assert pair.epoch() == 3
