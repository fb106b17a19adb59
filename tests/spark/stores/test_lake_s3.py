"""Tests a lake in S3 on a real server: both ways of merging, a run that is killed, the consistent snapshot, the comparison, and where
credentials are visible.
"""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from sluice.cdc_engine.config import SluiceConfig, SparkConfig
from sluice.cdc_engine.source.server import Source
from sluice.consistent_snapshot import deltalake_tables, read_consistent_snapshot, spark_views
from sluice.console.lake.store import store_findings
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, Verdict
from sluice.object_stores.folder import StoreFolder
from sluice.orchestration.base.lake_settings import storage_options
from sluice.orchestration.base.ports import MergeFailedError, MergeOrder
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.orchestration.sensor.lake_watch import LakeWatch
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.tables.delta_table import DeltaSnapshot, DeltaTable
from sluice.spark_jobs.tables.exact_bounds import rounded_files
from tests.equality.shelf import Shelf
from tests.equality.unwritten import NothingToWaitFor
from tests.orchestration.fix_location import make_config
from tests.spark.conftest import Lake
from tests.spark.small.test_kill_fault import (
    BEFORE,
    BOTH,
    FIRST,
    KEYED,
    KEYS_OF_LOG,
    ORDERS,
    SECONDS_MAX,
    Gate,
    require_all_once,
    run_killed_at,
    runs,
)
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, SchemaChange, stage
from tests.waiting import wait_for

__all__ = ["runs"]
NAME = "shop.orders"
KEYS = {"aws_access_key_id": "$LAKE_ACCESS", "aws_secret_access_key": "$LAKE_SECRET"}


@pytest.fixture
def prefix(s3_store: S3Server) -> str:
    return f"s3://{s3_store.bucket}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def s3_lake(lake: Lake, s3_store: S3Server, prefix: str) -> Lake:
    lake.root, lake.storage_options = prefix, s3_store.options
    return lake


@pytest.fixture
def s3_config(s3_store: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SluiceConfig:
    """Returns the configuration of a destination with this lake. It names the variables with the credentials."""
    monkeypatch.setenv("LAKE_ACCESS", ACCESS_KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    return make_config(tmp_path).model_copy(update={"lake": prefix, "storage_options": {**s3_store.options, **KEYS}})


@pytest.mark.servers
@pytest.mark.spark
def test_s3_both_ways_merge_one_table_alternately(s3_lake: Lake) -> None:
    require_both_ways(s3_lake)


def require_both_ways(lake: Lake) -> None:
    log = Schema(ORDERS.columns)
    lake.way = "spark"
    lake.merge({"shop.keyed": [Changes(ORDERS, FIRST)], "shop.log": [Changes(log, FIRST)]})
    found = []
    for number, way in enumerate(("small", "spark", "small"), start=1):
        lake.way = "small" if way == "small" else "spark"
        images = [
            Image(UPDATE_AFTER, 10 * number + 1, {"id": 1, "name": way}),
            Image(DELETE, 10 * number + 2, {"id": 5 - number, "name": "x"}),
            Image(INSERT, 10 * number + 3, {"id": 10 + number, "name": "new"}),
        ]
        directory = lake.stage({"shop.keyed": [Changes(ORDERS, images)], "shop.log": [Changes(log, images)]})
        found += [report.way for report in lake.merge_staged(directory, ["shop.keyed", "shop.log"]).values()]
        assert all(each.skipped for each in lake.merge_staged(directory, ["shop.keyed", "shop.log"]).values())
    assert found == ["small", "small", "spark", "spark", "small", "small"]
    assert lake.rows("shop.keyed", "id", "name") == [(0, "x"), (1, "small"), (11, "new"), (12, "new"), (13, "new")]
    assert len(lake.rows("shop.log", "id")) == len(FIRST) + 9


@pytest.mark.servers
@pytest.mark.spark
def test_s3_fault_a_task_that_outlives_its_killed_run_changes_nothing_twice(
    s3_lake: Lake,
    tmp_path: Path,
    runs: list[BaseProcess],
) -> None:
    """The store refuses the late commit of the task, because there is already a version with this number and the same changes."""
    assert s3_lake.spark.sessions_file is not None
    s3_lake.way = "small"
    s3_lake.merge({"shop.keyed": [Changes(ORDERS, FIRST)], "shop.log": [Changes(Schema(ORDERS.columns), FIRST)]})
    gate, directory = Gate(tmp_path, BEFORE), s3_lake.stage(BOTH)
    run_killed_at(gate, s3_lake, directory, runs)
    s3_lake.spark.sessions_file.unlink()
    s3_lake.merge_staged(directory, BOTH)
    require_all_once(s3_lake)
    gate.is_open.touch()
    wait_for("the task goes on", lambda: gate.passed, SECONDS_MAX)
    s3_lake.merge({"shop.keyed": [Changes(ORDERS, [Image(INSERT, 31, {"id": 7, "name": "later"})])]})
    assert s3_lake.rows("shop.keyed", "id", "name") == [*KEYED, (7, "later")]
    assert [row[0] for row in s3_lake.rows("shop.log", "_sluice_order_key")] == KEYS_OF_LOG
    assert all(each.skipped for each in s3_lake.merge_staged(directory, BOTH).values())


@pytest.mark.servers
@pytest.mark.spark
def test_s3_a_run_merges_and_publishes_its_consistent_snapshot_and_the_table_is_watched(
    s3_config: SluiceConfig, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    config = s3_config.model_copy(update={"spark": SparkConfig(remote=spark_server.url)})
    staged = stage(tmp_path / "staging", {NAME: [Changes(ORDERS, FIRST)]})
    order = MergeOrder(config=config, destination="shop", batch_dir=staged, tables=(NAME,), refusal=str)
    reported: list[str] = []
    spark_merge(order, lambda outcome: reported.append(outcome.name))
    assert reported == [NAME]
    options = storage_options(config.storage_options)
    snapshot = read_consistent_snapshot(config.lake, "shop", storage_options=options)
    (table,) = deltalake_tables(snapshot, options).values()
    assert pa.table(table.scan()).num_rows == len(FIRST)
    with open_sessions(SparkSettings(remote=spark_server.url), 1) as (session,):
        (view,) = spark_views(session.spark, snapshot, options)
        assert session.spark.table(view).count() == len(FIRST)
    watch = LakeWatch(config, "shop", begin=lambda act: act())
    watch.look(())
    assert watch.troubles() == ()
    for process in (psutil.Process(spark_server.pid), psutil.Process()):
        assert SECRET_KEY not in " ".join(process.cmdline())
    assert SECRET_KEY not in spark_server.log.read_text() + str(order) + str(config)


@pytest.mark.servers
def test_s3_equality_compares_a_lake_there(s3_config: SluiceConfig, mysql80: DatabaseServer, tmp_path: Path) -> None:
    shelf = Shelf(mysql80, tmp_path)
    shelf.config = shelf.config.model_copy(update={"lake": s3_config.lake})
    options = storage_options(s3_config.storage_options)
    try:
        shelf.make("CREATE TABLE t (id BIGINT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
        rows = pa.table({"id": [1, 2], "_sluice_order_key": [1, 1]})
        source = Source(destination="shelf", host="127.0.0.1", port=mysql80.port, user="root")
        requested = ComparedDestination(shelf.config, "shelf", source, options, merged=NothingToWaitFor())
        verdicts = []
        for mode in ("overwrite", "append"):
            write_deltalake(shelf.path("t"), rows, mode=mode, storage_options=options)
            rows = pa.table({"id": [3], "_sluice_order_key": [1]})
            verdicts += [each.verdict for each in compare_destination(requested, [f"{shelf.database}.t"], Extent())]
        assert verdicts == [Verdict.DIFFERENT, Verdict.EQUAL]
    finally:
        shelf.drop()


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.found
def test_s3_files_with_rounded_bounds_are_rewritten(s3_lake: Lake) -> None:
    """Test for defect 1: a table with column mapping in a store has rounded bounds from an earlier version. The repair reads the files'
    footers in the store.
    """
    big, name = 7210123456789012345, "shop.keys"
    before, after = (Schema({key: "decimal(20,0)", "n": "int"}, key=(key,)) for key in ("old", "id"))
    first = Changes(before, [Image(INSERT, 1, {"old": Decimal(1), "n": 0})])
    rename = {"kind": "rename", "column": "old", "plan": "apply", "new_name": "id"}
    s3_lake.way = "spark"
    s3_lake.merge({name: [first, SchemaChange(50, after, (rename,))]})
    rows = {"id": pa.array([Decimal(big)], pa.decimal128(20, 0)), "n": pa.array([0], pa.int32())}
    ours = {"_sluice_order_key": [60], "_sluice_commit_time": pa.array([0], pa.timestamp("us", "UTC"))}
    reported = pa.table({**rows, **ours, "_sluice_operation": ["insert"]})
    write_deltalake(s3_lake.log(name), reported, mode="append")
    assert len(rounded_files(name, s3_lake.log(name), s3_lake.path(name), s3_lake.storage_options)) == 1
    s3_lake.merge({name: [Changes(after, [Image(UPDATE_AFTER, 100, {"id": Decimal(big), "n": 1})])]})
    assert rounded_files(name, s3_lake.log(name), s3_lake.path(name), s3_lake.storage_options) == ()
    assert s3_lake.rows(name, "id", "n") == [(1, 0), (big, 1)]


@pytest.mark.servers
def test_s3_check_tests_the_store_and_says_what_is_missing(
    s3_config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store_findings(s3_config, starts_spark=True) == ([], [])
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("LAKE_SECRET", "another-secret")
    (problem,), (warning,) = store_findings(s3_config, starts_spark=True)
    assert "cannot be read" in problem
    assert "SignatureDoesNotMatch" in problem
    assert "another-secret" not in problem
    assert "sluice setup --with s3" in warning
    monkeypatch.delenv("LAKE_SECRET")
    (problem,), _ = store_findings(s3_config, starts_spark=True)
    assert "LAKE_SECRET" in problem


@pytest.mark.servers
@pytest.mark.spark
def test_s3_a_merge_with_wrong_credentials_fails_without_showing_them(
    s3_config: SluiceConfig, spark_server: SparkConnectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "another-secret")
    config = s3_config.model_copy(update={"spark": SparkConfig(remote=spark_server.url)})
    staged = stage(tmp_path / "staging", {NAME: [Changes(ORDERS, FIRST)]})
    order = MergeOrder(config=config, destination="shop", batch_dir=staged, tables=(NAME,), refusal=str)
    with pytest.raises(MergeFailedError, match=r"cannot be read") as raised:
        spark_merge(order, lambda _: None)
    assert "\n" not in str(raised.value)
    assert "another-secret" not in str(raised.value)
    assert ACCESS_KEY not in str(raised.value)


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.found
def test_s3_a_commit_that_was_written_over_is_no_success(
    s3_lake: Lake, s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 22: Spark on another host checked that the version was free, was suspended, and then overwrote this run's commit. This run
    reported success, although its rows were lost.
    """
    s3_lake.way = "spark"
    s3_lake.merge({NAME: [Changes(ORDERS, FIRST)]})
    # The test itself writes to the store below. The S3 server refuses the checksums of parts that the client adds by default.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    refresh, before, over = DeltaTable.refresh, s3_lake.log(NAME).version(), list[str]()

    def written_over(table: DeltaTable) -> DeltaSnapshot:
        if not over and s3_lake.log(NAME).version() > before:
            over.append(f"{before + 1:020d}.json")
            reported = json.dumps({"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE"}}).encode()
            log = StoreFolder(f"{s3_lake.path(NAME)}/_delta_log", s3_store.options)
            log.write(over[0], reported)
            log.remove_files([over[0].replace(".json", ".crc")])
        return refresh(table)

    monkeypatch.setattr(DeltaTable, "refresh", written_over)
    before_it = s3_lake.rows(NAME, "id")
    directory = s3_lake.stage({NAME: [Changes(ORDERS, [Image(INSERT, 31, {"id": 7, "name": "later"})])]})
    with pytest.raises(MergeError, match="has a commit of another writer instead of the commit of this run"):
        s3_lake.merge_staged(directory, [NAME])
    assert over
    assert s3_lake.rows(NAME, "id") == before_it
    s3_lake.merge_staged(directory, [NAME])
    assert s3_lake.rows(NAME, "id") == sorted([*before_it, (7,)])
