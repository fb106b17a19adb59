"""Tests consumers of a running engine on a real server: together with the lake, while the lake has no space, after restarts, and from the
binlog alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.errors import BatchNotFoundError, NotSubscribedError
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen
from sluice.cdc_engine.instance.consumers.consumers import Service
from sluice.cdc_engine.instance.consumers.subscriptions import ALONE, IN_STEP
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.status.consumers import consumers_of
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.instance.consumers.fix_services import numbers_in, taken
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def alone(service: Service) -> bool:
    return service.reads_alone


@pytest.fixture
def captured(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    made = Captured(tmp_path, mysql80)
    made.describe(f"canal_server: {{port: {free_port()}}}", "ring: {bytes_max: 4194304}")
    return made


def test_consumers_continue_when_the_lake_has_no_space_and_after_a_restart(captured: Captured) -> None:
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        one, two = engine.consumers.subscribe(1001), engine.consumers.subscribe(7, rf"{captured.database}\.other")
        captured.insert(range(5))
        assert taken(one, 5) == [*range(5)]
        assert not alone(one)
        # These changes are larger than the ring and the window, and the lake acks nothing. So the consumer must read alone.
        captured.insert(range(5, 30), filler_bytes=1 << 19)
        assert taken(one, 25) == [*range(5, 30)]
        assert alone(one)
        assert two.get(1 << 20)[1] is None
        status = {each["client_id"]: each for each in consumers_of(engine.status().to_json(), {})}
        assert (status[1001]["state"], set(status)) == (ALONE, {1001, 7})
        assert captured.take(engine, 30) == [*range(30)]
        captured.insert([30])
        assert taken(one, 1) == [30]
        assert not alone(one)
        batch_id, content = _next(captured, one, [31])
        assert numbers_in(content) == [31]
        one.rollback()
        with pytest.raises(BatchNotFoundError):
            one.ack(batch_id)
    finally:
        engine.stop()
    _goes_on_after_a_restart(captured)


def test_a_consumer_ahead_of_a_lake_without_space_knows_the_changes_in_between(captured: Captured) -> None:
    """The live stream has not reached the consumer's position. A stream that begins after a statement, or between XA PREPARE and XA COMMIT,
    must learn what lies in between.
    """
    pairs = f"{captured.database}.pairs"
    captured.run(f"CREATE TABLE {pairs} (id INT PRIMARY KEY, k INT, n INT)")
    with running(captured) as engine:
        one = engine.consumers.subscribe(1001, rf"{captured.database}\.(pairs|numbers)")
        _prepare(captured, "early", 100)
        captured.insert(range(30), filler_bytes=1 << 19)
        _prepare(captured, "late", 101)
        captured.run(f"INSERT INTO {pairs} (id, n) VALUES (1, 30)", f"ALTER TABLE {pairs} MODIFY n INT AFTER id")
        captured.run(f"INSERT INTO {pairs} (id, n) VALUES (2, 31)")
        assert taken(one, 32) == [*range(32)]
        assert alone(one)
    captured.run("XA COMMIT 'late'", f"INSERT INTO {pairs} (id, n) VALUES (3, 32)", "XA COMMIT 'early'")
    with running(captured) as engine:
        one = engine.consumers.service(1001)
        assert taken(one, 3) == [101, 32, 100]
        captured.run(f"ALTER TABLE {pairs} MODIFY n INT AFTER k", f"INSERT INTO {pairs} (id, n) VALUES (4, 33)")
        assert taken(one, 1) == [33]
        _prepare(captured, "last", 102)
        captured.run(f"INSERT INTO {pairs} (id, n) VALUES (5, 34)")
        assert taken(one, 1) == [34]
        assert alone(one)
    captured.run("XA COMMIT 'last'", f"INSERT INTO {pairs} (id, n) VALUES (6, 35)")
    captured.insert(range(40, 60), filler_bytes=1 << 19)
    with running(captured) as engine:  # Now the lake has read everything.
        assert set(captured.take(engine, 59)) == {*range(36), *range(40, 60), 100, 101, 102}
        assert taken(engine.consumers.service(1001), 22) == [102, 35, *range(40, 60)]


def _prepare(captured: Captured, name: str, number: int) -> None:
    insert = f"INSERT INTO {captured.database}.numbers VALUES ({number}, '')"
    captured.run(f"XA START '{name}'", insert, f"XA END '{name}'", f"XA PREPARE '{name}'")


def _next(captured: Captured, service: Service, numbers: list[int]) -> tuple[int, tuple[Chosen, ...]]:
    captured.insert(numbers)
    batch_id, content = service.get(1 << 20, 30.0)
    assert content is not None
    return batch_id, content


def _reads_in_step(engine: Engine) -> bool:
    """Returns whether the only consumer reads in step with the live stream. A consumer that reads alone joins the live stream only at a
    `get`, so this function first calls `get`.
    """
    nothing = engine.consumers.service(1001).get(1, 0.1)[0] == -1
    return nothing and [each.state for each in engine.status().consumers] == [IN_STEP]


def _goes_on_after_a_restart(captured: Captured) -> None:
    """Requires that, after a restart, a consumer gets its unacked changes again and later reads in step. A consumer that was unsubscribed
    is unknown then.
    """
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        assert taken(engine.consumers.service(1001), 1) == [31]
        engine.consumers.unsubscribe(7)
        with pytest.raises(NotSubscribedError):
            engine.consumers.service(7)
        wait_for("it reads with the others", lambda: _reads_in_step(engine))
    finally:
        engine.stop()
