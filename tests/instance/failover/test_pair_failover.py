"""Tests failovers between two real servers with a running engine. The primary dies during a batch that was merged in part, and a standby
source takes over. Later the engine returns to the first server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.source.in_use import address_in_use, use
from sluice.console.toolchain.ports import free_port
from tests.fix_servers import ServerFactory
from tests.instance.consumers.fix_services import taken
from tests.instance.failover.fix_pair import DATABASE, Pair, run
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

TRANSACTION_BYTES = 100  # At this size a batch has exactly one transaction.


@pytest.fixture(params=["mysql-8.0.31", "mysql-9", "mariadb-11.4.5"])
def pair(request: pytest.FixtureRequest, fresh_server: ServerFactory, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(request.param, fresh_server, tmp_path)
    yield made
    made.slot.stop()


def test_failover_to_the_standby_and_back_loses_nothing_and_merges_nothing_twice(pair: Pair) -> None:
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
    pair.lake.merge(pair.directory / batch.path, ["numbers"])  # Then the run dies.
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


def test_failover_consumers_ahead_of_the_lake_and_behind_it_get_what_they_lack_and_no_more(pair: Pair) -> None:
    """After a failover, each consumer continues with a stream that leaves out the transactions that this consumer has. Later the consumers
    join the lake's stream, which left out the transactions that the lake has.

    The same holds for statements. One consumer has not read some statements that the lake has applied. The other consumer has read
    statements that the lake has not applied.
    """
    pair.end_engine()
    pair.describe(f"canal_server: {{port: {free_port()}}}")
    engine = wait_for("the engine runs", pair.engine)
    ahead, behind = (engine.consumers.subscribe(client, rf"{DATABASE}\.numbers") for client in (1001, 1002))
    pair.write(pair.first, 2)
    assert taken(behind, 2, bytes_max=TRANSACTION_BYTES) == [0, 1]
    run(pair.first, f"ALTER TABLE {DATABASE}.numbers ADD COLUMN more INT NOT NULL DEFAULT -1 FIRST")
    pair.write(pair.first, 2)
    pair.settle()
    run(pair.first, f"ALTER TABLE {DATABASE}.numbers MODIFY more INT NOT NULL DEFAULT -1 AFTER n")
    pair.write(pair.first, 3)
    assert taken(ahead, 7) == [*range(7)]

    pair.wait_until_replicated(pair.second)
    pair.first.kill()
    wait_for("the standby is read", lambda: address_in_use(pair.directory) == f"127.0.0.1:{pair.second.port}")
    pair.promote(pair.second)
    pair.wait_until_read(pair.second)
    pair.write(pair.second, 2)
    engine = wait_for("the engine runs", pair.engine)
    for client, lacking in ((1001, [7, 8]), (1002, [*range(2, 9)])):
        assert taken(engine.consumers.service(client), len(lacking), bytes_max=1) == lacking
        assert not engine.consumers.service(client).reads_alone
