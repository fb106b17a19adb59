"""Tests that the checks, when executed by hand, give the results that the sensor publishes, from the engine's files alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.status_file import STATUS_FILE
from sluice.cdc_engine.table_meta.change.policy import Item, PendingChange
from sluice.orchestration.base.testing import position
from sluice.orchestration.checks.observations import (
    LAG,
    RE_SNAPSHOT,
    TABLE_CHECK,
    PublishedObservations,
    due,
    failures,
    result_of_tables,
    stopped_sentence,
)
from sluice.orchestration.checks.stopped import STATUS_SECONDS_MAX, older_tables, read_failures
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

STOPPED = StoppedTable(
    database="shop",
    table="orders",
    state=TableState.DDL_UNSUPPORTED,
    reason="DROP COLUMN: not yet",
    position=position(9),
)


def status(**fields: Any) -> EngineStatus:
    return EngineStatus(**{"state": "RUNNING", "updated_at_us": time.time_ns() // 1000, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"state": "STARTING"},
        {"state": "RECONNECTING", "reason": "the server went away"},
        {"state": "POSITION_LOST", "reason": "mysql-bin.000001 was purged"},
        {"stopped_tables": (STOPPED,)},
        {"troubles": ("no tick of the sensor shop_engine for 95 s", "the stream stands still")},
        {"state": "POSITION_LOST", "reason": "x", "stopped_tables": (STOPPED,)},
    ],
    ids=lambda fields: " ".join(fields) or "RUNNING",
)
def test_fault_the_file_says_what_the_engine_says(tmp_path: Path, fields: dict[str, Any]) -> None:
    # The status is created here and not while tests are collected, because the file contains the time at which it was written.
    written = status(**fields)
    write_status(tmp_path / STATUS_FILE, written)
    assert read_failures(tmp_path, time.time()) == failures(tmp_path.name, written)


def test_a_file_that_is_no_longer_written_fails(tmp_path: Path) -> None:
    assert read_failures(tmp_path, time.time())[""].startswith("STOPPED: ")
    write_status(tmp_path / STATUS_FILE, status(stopped_tables=(STOPPED,)))
    assert read_failures(tmp_path, time.time() - 3600)[""].startswith("STOPPED"), "the clock was set back"
    found = read_failures(tmp_path, time.time() + STATUS_SECONDS_MAX + 1)
    assert found[""].startswith("STOPPED: no engine has written")
    assert "shop.orders" in found


def test_a_lake_that_is_too_late_fails_a_check_of_its_own_once(tmp_path: Path) -> None:
    late = status(lag_seconds=31.0)
    write_status(tmp_path / STATUS_FILE, late)
    found = failures("shop", late, 30.0)
    assert list(found) == [LAG]
    assert read_failures(tmp_path, time.time(), 30.0) == found
    assert not read_failures(tmp_path, time.time(), 32.0)
    assert LAG in read_failures(tmp_path, time.time() + 600, 600.0), "nobody has merged since"
    later = failures("shop", status(lag_seconds=99.0), 30.0)
    events, published = due("shop", ["shop.orders"], late, found, published=PublishedObservations(), now_seconds=1e9)
    passed = {each.check_name: each.passed for each in events if isinstance(each, dg.AssetCheckEvaluation)}
    assert passed == {"flowing": True, "running": True, "caught_up": False, "tables_flowing": True}
    events, published = due("shop", ["shop.orders"], late, later, published=published, now_seconds=1e9 + 1)
    assert not events, "a lag that grows is no news"
    events, _ = due("shop", ["shop.orders"], status(), {}, published=published, now_seconds=1e9 + 2)
    assert [(each.check_name, each.passed) for each in events if isinstance(each, dg.AssetCheckEvaluation)] == [
        ("caught_up", True)
    ]


@pytest.mark.found
def test_a_table_that_is_re_read_warns_that_the_lake_is_older(tmp_path: Path) -> None:
    """Defect 32: while a table was re-read, it counted as acked and not as stopped, and no check reported that its rows in the lake were
    older.
    """
    records, position = SnapshotRecords(tmp_path), Position(epoch=1, file="mysql-bin.000001", offset=4)
    records.begin(wanted("shop.orders", position, 0.0))
    assert older_tables(tmp_path) == {}, "the lake does not have it yet: nobody can take it for newer"
    LakeTables(tmp_path).keep({"shop.orders": ("id", 1)})
    failing = older_tables(tmp_path)
    assert f"as of {position}, older than the cursor" in failing["shop.orders"]
    events, published = due(
        "shop", ["shop.orders"], status(), failing, published=PublishedObservations(), now_seconds=1e9
    )
    found = {each.check_name: each for each in events if isinstance(each, dg.AssetCheckEvaluation) and not each.passed}
    assert set(found) == {"flowing", "tables_flowing"}
    assert {each.severity for each in found.values()} == {dg.AssetCheckSeverity.WARN}
    both = {**failing, **failures("shop", status(stopped_tables=(STOPPED,)))}
    assert not stopped_sentence(both | {"shop.a": "DDL_HELD: x"}).startswith(RE_SNAPSHOT), "a stopped table is an error"
    records.update("shop.orders", lambda now: now.canceled())
    events, _ = due("shop", ["shop.orders"], status(), older_tables(tmp_path), published=published, now_seconds=1e9)
    assert {each.passed for each in events if isinstance(each, dg.AssetCheckEvaluation)} == {True}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x00", b'{"state": "RUNNING"}', b'{"updated_at_us": "x"}'])
def test_a_damaged_file_fails_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATUS_FILE).write_bytes(content)
    assert read_failures(tmp_path, time.time())[""].startswith("UNKNOWN: ")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as made:
        yield made


def test_every_check_can_be_executed_by_hand(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    config = make_config(tmp_path)
    directory = config.destination_dir("shop")
    write_tables(directory)
    write_status(directory / STATUS_FILE, status(stopped_tables=(STOPPED,)))
    defs = build_definitions(config, make_fake_ports(config).ports())
    job = dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())
    result = (
        dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
        .resolve_job_def("checks")
        .execute_in_process(instance=instance)
    )
    found = {(each.asset_key.path[-1], each.check_name): each.passed for each in result.get_asset_check_evaluations()}
    assert found == {
        ("engine", "running"): True,
        ("engine", "tables_flowing"): False,
        ("engine", "caught_up"): True,
        ("orders", "flowing"): False,
        ("items", "flowing"): True,
        ("orders", "equals_lake"): True,
        ("items", "equals_lake"): True,
    }, "a table whose name Dagster cannot spell has no check of its own; the engine's names it"
    assert json.loads((directory / STATUS_FILE).read_text())["state"] == "RUNNING"


@pytest.mark.found
@pytest.mark.parametrize(
    ("failing", "state", "reason"),
    [
        ({}, "RUNNING", "none"),
        ({"shop.a": "DDL_HELD: x", LAG: "LAG: y"}, "DDL_HELD", "shop.a: DDL_HELD: x"),
        (
            {"shop.a": "DDL_HELD: x", "shop.b": "KEY_NULL: y"},
            "DDL_HELD and KEY_NULL",
            "shop.a: DDL_HELD: x; shop.b: KEY_NULL: y",
        ),
        ({"shop.a": f"{RE_SNAPSHOT}: x"}, RE_SNAPSHOT, f"shop.a: {RE_SNAPSHOT}: x"),
    ],
)
def test_the_check_of_all_tables_has_the_states_of_the_stopped_tables(
    failing: dict[str, str], state: str, reason: str
) -> None:
    """Defect 1091: the state was the name of the first stopped table."""
    metadata = result_of_tables(dg.AssetKey("engine"), failing).metadata
    assert (metadata["state"].value, metadata["reason"].value) == (state, reason)


@pytest.mark.parametrize("word", ["apply", "stop", "ignore"])
def test_cascade_of_children_is_named_by_asset_and_check(tmp_path: Path, word: str) -> None:
    config = make_config(tmp_path)
    shop = config.destinations["shop"].model_copy(update={"cascades": word})
    config = config.model_copy(update={"destinations": {"shop": shop}})
    key = Cascade(
        name="items_ibfk_1",
        parent=("shop", "orders"),
        child=("shop", "items"),
        columns=("order_id",),
        referenced=("id",),
        on_delete="CASCADE",
    )
    write_tables(config.destination_dir("shop"), cascades=(key,))
    defs = build_definitions(config, make_fake_ports(config).ports())
    graph = defs.resolve_asset_graph()
    reported = (
        "items_ibfk_1: (order_id) refers to shop.orders (id) ON DELETE CASCADE, which changes rows without row events. "
        f"conf/ has cascades: {word}, so "
    )
    for name, said in (("items", True), ("orders", False)):
        asset = dg.AssetKey(["shop", name])
        assert (reported in str(graph.get(asset).metadata.get("foreign_keys", ""))) == said
        assert (reported in str(graph.get_check_spec(dg.AssetCheckKey(asset, TABLE_CHECK)).description)) == said


HELD = PendingChange(
    destination="shop",
    database="shop",
    table="orders",
    order_key=9,
    position="mysql-bin.000001:9@1",
    statement="ALTER TABLE orders RENAME COLUMN a TO b",
    items=(Item(kind="rename", what="rename a to b"),),
    choices=("apply", "new_column"),
)


def test_ddl_a_pending_change_fails_its_tables_check_until_it_is_approved(tmp_path: Path) -> None:
    pending = StoppedTable(
        database="shop", table="orders", state=TableState.DDL_HELD, reason=HELD.reason, position=position(9)
    )
    write_status(tmp_path / STATUS_FILE, status(stopped_tables=(pending,)))
    failing = read_failures(tmp_path, time.time())
    events, published = due(
        "shop", ["shop.orders"], status(), failing, published=PublishedObservations(), now_seconds=1e9
    )
    (check,) = [each for each in events if getattr(each, "check_name", "") == TABLE_CHECK]
    assert isinstance(check, dg.AssetCheckEvaluation)
    assert (check.passed, check.severity, check.asset_key) == (
        False,
        dg.AssetCheckSeverity.ERROR,
        dg.AssetKey(["shop", "orders"]),
    )
    plan = check.metadata["plan"]
    assert isinstance(plan, dg.MarkdownMetadataValue)
    assert plan.md_str is not None
    assert "sluice schema approve shop shop.orders --plan apply|new_column" in plan.md_str
    assert "`new_column`: a column of the new name" in plan.md_str
    assert "launch the job `decide`" in plan.md_str
    assert check.description == f"DDL_HELD: `{HELD.statement}` at {HELD.position} waits for review."
    events, _ = due("shop", ["shop.orders"], status(), {}, published=published, now_seconds=1e9 + 1)
    (check,) = [each for each in events if getattr(each, "check_name", "") == TABLE_CHECK]
    assert isinstance(check, dg.AssetCheckEvaluation)
    assert check.passed
    assert "plan" not in check.metadata
