"""Tests the plan of a backfill, on real servers with a running engine: what it would read, what it expects, and what it refuses."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import ActRefusedError, PositionLostError
from sluice.cdc_engine.instance.rows import plan as planning
from sluice.cdc_engine.instance.rows.plan import Plan, make_plan
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.time_text import time_us
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured, running
from tests.instance.test_start_time_backfill import insert_at

pytestmark = pytest.mark.servers

SECOND_US = 1_000_000


@pytest.fixture(params=["mysql80", "mariadb114"])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    server: DatabaseServer = request.getfixturevalue(request.param)
    made = Captured(tmp_path, server)
    # Begins a new binlog file, because earlier files may have rows of other tests with times in the future.
    made.run(f"CREATE TABLE {made.database}.loose (n INT)", "FLUSH BINARY LOGS")
    return made


def plan(captured: Captured, requested: RequestedInterval) -> Plan:
    config = captured.config
    return make_plan(
        config.destinations["shop"], config.destination_dir("shop"), requested, time.time_ns() // 1000 + 10**10
    )


def test_a_plan_says_what_would_be_read_and_changed_and_what_is_refused_backfill(captured: Captured) -> None:
    base, numbers = int(time.time()) + 1000, f"{captured.database}.numbers"
    with running(captured) as engine:
        for number in range(4):
            insert_at(captured, number, base + 10 * number)
        assert captured.take(engine, 4) == [0, 1, 2, 3]
        made = plan(captured, RequestedInterval(from_us=(base + 5) * SECOND_US, to_us=(base + 25) * SECOND_US))
        captured.run(f"DELETE FROM {numbers} WHERE n = 3", f"UPDATE {numbers} SET filler = 'x' WHERE n = 2")
        open_end = plan(captured, RequestedInterval(from_us=(base + 5) * SECOND_US, tables=(numbers,)))
        assert engine.status().state == "RUNNING"
    found = {each.name: each for each in made.tables}
    assert (found[numbers].refused, found[numbers].changes) == ("", 2)
    assert "no key" in found[f"{captured.database}.loose"].refused
    assert made.problems == (f"{captured.database}.loose: {found[f'{captured.database}.loose'].refused}",)
    assert (made.changes, made.counted) == (2, True)
    assert 0 < made.bytes < 1 << 20
    assert made.files
    assert made.seconds > 0
    assert time_us(made.earliest_time, 0) < base * SECOND_US
    assert [(each.name, each.changes, each.refused) for each in open_end.tables] == [(numbers, 5, "")]
    assert not list(captured.directory.glob("backfill-plan-*")), "nothing is left of it"


def test_rows_that_a_transaction_undoes_within_the_binlog_do_not_count_backfill(captured: Captured) -> None:
    """MariaDB logs the transaction that is rolled back, because it creates a temporary table. MySQL 8.0 does not."""
    began_us, numbers = time.time_ns() // 1000, f"{captured.database}.numbers"
    temporary = f"CREATE TEMPORARY TABLE {captured.database}.passing (n INT)"
    with running(captured) as engine:
        captured.insert([1])
        captured.run(
            "BEGIN", f"INSERT INTO {numbers} VALUES (2, 'undone')", temporary, f"DELETE FROM {numbers}", "ROLLBACK"
        )
        captured.insert([3])
        assert captured.take(engine, 2) == [1, 3]
        (table,) = (each for each in plan(captured, RequestedInterval(from_us=began_us)).tables if each.name == numbers)
    assert table.changes == 2


def test_a_plan_names_statements_and_what_the_history_knows_backfill(captured: Captured) -> None:
    base, numbers = int(time.time()) + 1000, f"{captured.database}.numbers"
    insert_at(captured, 0, base)
    with running(captured) as engine:
        # The interval begins after the first row, even if a server writes its own events between two transactions (MariaDB's checkpoints).
        insert_at(captured, 3, base + 2)
        insert_at(captured, 1, base + 10)
        assert captured.take(engine, 2) == [3, 1]
        before = plan(captured, RequestedInterval(from_us=(base - 5) * SECOND_US, tables=(numbers,)))
        captured.run(f"TRUNCATE TABLE {numbers}")
        insert_at(captured, 2, base + 20)
        assert captured.take(engine, 1) == [2]
        after = plan(captured, RequestedInterval(from_us=(base + 5) * SECOND_US, tables=(numbers,)))
    (early,) = before.tables
    assert (early.refused, early.changes, early.reaches_back) == ("", 3, False), "the stream began after it"
    (late,) = after.tables
    assert late.reaches_back
    assert "TRUNCATE TABLE" in late.refused
    assert len(late.statements) == 1


def test_what_was_counted_in_a_part_is_expected_of_the_whole_backfill(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, numbers = int(time.time()) + 1000, f"{captured.database}.numbers"
    with running(captured) as engine:
        for number in range(40):
            insert_at(captured, number, base + 10 * number)
        captured.take(engine, 40)
        monkeypatch.setattr(planning, "SAMPLE_BYTES_MAX", 1)
        made = plan(captured, RequestedInterval(from_us=(base + 5) * SECOND_US, tables=(numbers,)))
    assert not made.counted
    assert made.changes >= 1
    assert made.sample_bytes > 0


def test_a_time_that_is_gone_and_a_destination_that_has_not_begun_are_refused_backfill(captured: Captured) -> None:
    with pytest.raises(ActRefusedError, match="has no position yet"):
        plan(captured, RequestedInterval(from_us=SECOND_US))
    with running(captured) as engine:
        captured.insert([0])
        captured.take(engine, 1)
        with pytest.raises(PositionLostError, match="the earliest time that can be read is"):
            plan(captured, RequestedInterval(from_us=SECOND_US))
