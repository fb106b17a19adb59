"""Tests the change log and the history of a table as assets: their dependencies, and what the run that writes them reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.config import SluiceConfig, TableConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot import groups
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.work import SnapshotDependencies
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.table_catalog import delta_key, source_key
from sluice.orchestration.base.testing import FakePorts, fake_report
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run import merge_reports
from sluice.orchestration.run.rows import job as rows_job
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.repair import Repaired
from sluice.spark_jobs.snapshot.publication import PublishedSnapshot
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

ORDERS, ITEMS = "shop.orders", "shop.items"
LOG, HISTORY = delta_key("shop", f"{ORDERS}__log"), delta_key("shop", f"{ORDERS}__history")


def described(root: Path, tables: dict[str, TableConfig], names: tuple[str, ...] = (ORDERS, ITEMS)) -> SluiceConfig:
    config = make_config(root)
    write_tables(config.destination_dir("shop"), names)
    shop = config.destinations["shop"].model_copy(update={"tables": tables})
    return config.model_copy(update={"destinations": {"shop": shop}})


def built(root: Path, both: TableConfig) -> tuple[dg.Definitions, FakePorts]:
    config = described(root, {ORDERS: both})
    fakes = make_fake_ports(config)
    return build_definitions(config, fakes.ports()), fakes


def merged(defs: dg.Definitions, fakes: FakePorts, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    fakes.engine.capture(5)
    batch = fakes.engine.hand_out(0)
    assert batch is not None
    reference = BatchReference.of("shop", batch)
    return defs.resolve_job_def("merge_shop_job").execute_in_process(
        instance=instance,
        run_config={"ops": {"merge_shop": {"config": reference.to_config()}}},
        tags=reference.to_tags(),
    )


@pytest.mark.found
def test_a_log_and_a_history_come_from_the_delta_table(tmp_path: Path) -> None:
    """Defect 30: the lineage ended at the Delta table. Its history and its change log were no assets."""
    defs, fakes = built(
        tmp_path, TableConfig(change_log=True, history=True, owners=("ann@example.org",), group="sales")
    )
    graph = defs.resolve_asset_graph()
    for key, words in ((LOG, "The change log of shop.orders"), (HISTORY, "The history of shop.orders")):
        found = graph.get(key)
        assert found.parent_keys == {delta_key("shop", ORDERS)}
        assert (list(found.owners), found.group_name) == (["ann@example.org"], "sales")
        assert str(found.description).startswith(words)
        assert str(found.metadata["dagster/uri"]).endswith("/shop/" + key.path[-1])
    assert graph.get(delta_key("shop", ORDERS)).parent_keys == {source_key("shop", ORDERS)}
    assert not graph.has(delta_key("shop", f"{ITEMS}__log"))
    with dg.DagsterInstance.ephemeral() as instance:
        result = merged(defs, fakes, instance)
        (log,) = instance.fetch_materializations(LOG, limit=9).records
        (history,) = instance.fetch_materializations(HISTORY, limit=9).records
    assert result.success
    shown: Any = history.asset_materialization.metadata if history.asset_materialization else {}
    (origin,) = shown["dagster/column_lineage"].value.deps_by_column["note"]
    assert (origin.asset_key, origin.column_name) == (delta_key("shop", ORDERS), "note")
    assert log.asset_materialization is not None
    assert "dagster/column_lineage" not in log.asset_materialization.metadata


def test_a_history_instead_of_the_rows_is_the_asset_of_the_table(tmp_path: Path) -> None:
    defs, _ = built(tmp_path, TableConfig(change_log=True, history=True, current_state=False))
    graph = defs.resolve_asset_graph()
    assert not graph.has(HISTORY)
    assert graph.get(LOG).parent_keys == {source_key("shop", ORDERS)}


def test_a_captured_table_of_that_name_keeps_its_asset(tmp_path: Path) -> None:
    names = (ORDERS, f"{ORDERS}__log")
    config = described(tmp_path, {ORDERS: TableConfig(change_log=True)}, names)
    graph = build_definitions(config, make_fake_ports(config, names).ports()).resolve_asset_graph()
    assert graph.get(LOG).parent_keys == {source_key("shop", f"{ORDERS}__log")}


def test_a_log_that_dagster_cannot_show_fails_no_run_that_has_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*_: object) -> list[dg.AssetMaterialization]:
        raise ValueError("odd")

    monkeypatch.setattr(merge_reports, "side_events", odd)
    defs, fakes = built(tmp_path, TableConfig(change_log=True))
    with dg.DagsterInstance.ephemeral() as instance:
        assert merged(defs, fakes, instance).success


def reported(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dict[str, Any]]:
    records = instance.fetch_materializations(key, limit=9).records
    events = [each.asset_materialization for each in records]
    return [{name: value.value for name, value in event.metadata.items()} for event in events if event]


def written(config: SluiceConfig, *kinds: str) -> None:
    """Writes the records that a run leaves for the change log and the history of a table."""
    tables = LakeTables(config.destination_dir("shop"))
    for kind in kinds:
        tables.keep_side_table(ORDERS, kind, ("id", 3))


@pytest.mark.found
@pytest.mark.parametrize("kinds", [("log", "history"), ("history",), ()])
def test_a_snapshot_reports_the_log_and_the_history_that_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    """Defect 30: a snapshot, a repair and a backfill wrote the change log and the history, but the assets of these had no event."""
    config = described(tmp_path, {ORDERS: TableConfig(change_log=True, history=True)})
    begin = Position(epoch=1, file="b.000001", offset=400)
    record = wanted(ORDERS, None, 0.0).began(begin, version="1", key=("id",), columns=(), rows_expected=7, now=0.0)
    record = record.with_chunks(1, 7, 4096)

    def publish(*_: object, **__: object) -> PublishedSnapshot:
        written(config, *kinds)
        return PublishedSnapshot(rows=7, label=1, delta_version=1, files=1, seconds=1.0, columns=(("id", "bigint"),))

    def run_all(snapshots: SnapshotDependencies, _: float) -> None:
        with snapshots.run_lock():
            snapshots.publish(record, TableVersion(database="shop", table="orders", columns=(), key=("id",)))
        snapshots.progress(record)

    monkeypatch.setattr(groups, "run_all", run_all)
    ports = dataclasses.replace(make_fake_ports(config).ports(), publish=publish)
    job = build_definitions(config, ports).resolve_job_def("snapshot_shop_job")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert job.execute_in_process(instance=instance).success
        assert len(reported(instance, delta_key("shop", ORDERS))) == 1
        found = {kind: reported(instance, key) for kind, key in (("log", LOG), ("history", HISTORY))}
    assert {kind for kind, events in found.items() if events} == set(kinds)
    for events in found.values():
        assert [(each["source_rows"], each["start_position"]) for each in events] in ([], [(7, str(begin))])


@pytest.mark.found
def test_a_repair_reports_the_history_and_not_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test for defect 30: a repair reports only the history. A change log has only the changes of the stream."""
    config = described(tmp_path, {ORDERS: TableConfig(change_log=True, history=True)})
    written(config, "log", "history")

    def repair(run: RowsRun, *_: object) -> Repaired:
        run.listener.done(fake_report(ORDERS))
        return Repaired(plan=())

    monkeypatch.setattr(rows_job, "plan_repair", lambda *_: ())
    monkeypatch.setattr(rows_job, "run_repair", repair)
    job = build_definitions(config, make_fake_ports(config).ports()).resolve_job_def(rows_job.JOB)
    run_config = {"ops": {rows_job.STEP: {"config": {"operation": "repair"}}}}
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert job.execute_in_process(instance=instance, run_config=run_config).success
        (event,) = reported(instance, HISTORY)
        assert reported(instance, LOG) == []
    assert event["source_rows"] == fake_report(ORDERS).source_rows
    assert "note" in event["dagster/column_lineage"].deps_by_column
