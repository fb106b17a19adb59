"""Tests the merge of a run: on a real Spark server in forks of the warm process, as runs are started, and without a Spark server."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import deltalake
import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.config import SluiceConfig, SparkConfig, TableConfig
from sluice.consistent_snapshot import read_consistent_snapshot, spark_views
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import storage_options, target
from sluice.orchestration.base.ports import MergeFailedError, MergeOrder
from sluice.orchestration.code_server import WARM_MODULES
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.session import SparkSettings, open_sessions
from tests.orchestration.fix_location import make_config
from tests.spark.staged import DELETE, INSERT, Changes, Image, Schema, stage

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
MERGE_SECONDS_MAX = 180.0


def images(*numbers: int, operation: int = INSERT) -> list[Image]:
    return [
        Image(operation, 1000 * operation + number, {"id": number, "name": f"order {number}"}) for number in numbers
    ]


def merge_and_report(order: MergeOrder, outcomes: Any) -> None:
    """Runs in the fork."""

    def report(outcome: TableReport) -> None:
        outcomes.put((outcome.name, outcome.rows_inserted, outcome.rows_deleted, outcome.delta_version))

    try:
        spark_merge(order, report)
    except MergeFailedError as error:
        outcomes.put(str(error))


def order_of(config: SluiceConfig, batch_dir: Path) -> MergeOrder:
    return MergeOrder(config=config, destination="shop", batch_dir=batch_dir, tables=("shop.orders",), refusal=str)


@pytest.mark.spark
def test_forks_of_the_warm_process_merge_and_publish(tmp_path: Path, spark_server: SparkConnectServer) -> None:
    """Two runs follow each other. What one fork does with Spark, Arrow and Delta has no effect on the next."""
    config = make_config(tmp_path).model_copy(update={"spark": SparkConfig(remote=spark_server.url)})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(WARM_MODULES))
    outcomes = context.Queue()
    found = []
    for delivery, segment in enumerate((images(1, 2, 3), images(2, operation=DELETE)), start=1):
        staged = stage(tmp_path / "staging", {"shop.orders": [Changes(ORDERS, segment)]}, delivery=delivery)
        run = context.Process(target=merge_and_report, args=(order_of(config, staged), outcomes))
        run.start()
        found.append(outcomes.get(timeout=MERGE_SECONDS_MAX))
        run.join(MERGE_SECONDS_MAX)
        assert run.exitcode == 0
    assert [outcome[:3] for outcome in found] == [("shop.orders", 3, 0), ("shop.orders", 0, 1)]
    table = deltalake.DeltaTable(config.table_path("shop", "shop", "orders"))
    rows: Any = deltalake.QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
    assert [row.as_py() for row in rows["id"]] == [1, 3]
    # The consistent snapshot names the version that the second run committed. The Spark view reads the table at this version.
    snapshot = read_consistent_snapshot(config.lake, "shop")
    assert (snapshot.tables["shop.orders"].version, snapshot.order_key) == (found[-1][3], 4002)
    spark = SparkSettings(remote=spark_server.url, sessions_file=tmp_path / "lanes.json")
    with open_sessions(spark, 1) as (session,):
        assert spark_views(session.spark, snapshot) == ["shop_orders"]
        assert [row.id for row in session.spark.sql("SELECT id FROM shop_orders ORDER BY id").collect()] == [1, 3]


def test_without_spark_it_is_one_sentence(tmp_path: Path) -> None:
    config = make_config(tmp_path).model_copy(update={"spark": SparkConfig(remote=f"sc://127.0.0.1:{free_port()}")})
    staged = stage(tmp_path / "staging", {"shop.orders": [Changes(ORDERS, images(1))]})
    with pytest.raises(MergeFailedError) as raised:
        spark_merge(order_of(config, staged), lambda _: None)
    assert "Spark" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_garbage_instead_of_a_staged_batch_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\x00garbage")
    with pytest.raises(MergeFailedError, match=r"manifest\.json") as raised:
        spark_merge(order_of(make_config(tmp_path), tmp_path), lambda _: None)
    assert "\n" not in str(raised.value)


def test_a_table_is_merged_as_it_is_configured(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    shop = config.destinations["shop"].model_copy(
        update={"tables": {"shop.orders": TableConfig(deletes="soft", deletion_vectors=False, path="/elsewhere")}}
    )
    config = config.model_copy(update={"destinations": {"shop": shop}})
    configured, default = target(config, "shop", "shop.orders"), target(config, "shop", "shop.items")
    assert (configured.path, configured.deletes, configured.deletion_vectors) == ("/elsewhere", "soft", False)
    assert (default.path, default.deletes, default.deletion_vectors) == (f"{config.lake}/shop/items", "hard", True)


def test_secrets_come_from_the_environment_and_are_named_when_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_KEY", "very secret")
    monkeypatch.delenv("LAKE_OTHER", raising=False)
    assert storage_options({"region": "x", "key": "$LAKE_KEY"}) == {"region": "x", "key": "very secret"}
    with pytest.raises(MergeFailedError, match="LAKE_OTHER") as raised:
        storage_options({"key": "$LAKE_KEY", "other": "$LAKE_OTHER"})
    assert "very secret" not in str(raised.value)
