"""Tests what one batch with many tables adds to Dagster's storage, per table: bytes in SQLite files, and events."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster_shared.serdes import serialize_value

from sluice.cdc_engine.config import SluiceConfig
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.table_catalog import DefinedColumns, defined_tables
from sluice.orchestration.base.testing import fake_report
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run.merge_reports import MergeReports, reported_tables
from sluice.orchestration.run.merge_run import MergedTable
from sluice.orchestration.storage import KeptEvents
from tests.orchestration.fix_location import make_fake_ports
from tests.scale.fix_many_tables import make_destination, table_names

TABLES = 300
BYTES_MAX = 1000  # The limit per table and batch.
EVENT_BYTES_MAX = 5000  # The limit for one materialization of a table with its own asset.


class Stored:
    """A destination with many tables, and a Dagster storage in SQLite files, as `sluice up` configures it."""

    def __init__(self, root: Path, table_assets_max: int) -> None:
        config, _ = make_destination(root, TABLES)
        shop = config.destinations["shop"].model_copy(update={"table_assets_max": table_assets_max})
        self.config: SluiceConfig = config.model_copy(update={"destinations": {"shop": shop}})
        self.home = root / "dagster"
        self.home.mkdir()
        storage = {
            "module": "sluice.orchestration.storage",
            "class": "KeptSqlite",
            "config": {"base_dir": str(self.home)},
        }
        (self.home / "dagster.yaml").write_text(yaml.dump({"storage": {"custom": storage}}))
        self.fakes = make_fake_ports(self.config, tuple(table_names(TABLES)))
        self.defs = build_definitions(self.config, self.fakes.ports())

    def event_bytes(self, name: str, columns: tuple[tuple[str, str], ...]) -> int:
        """Returns the size in bytes of the materialization of a merged table that has these columns."""
        outcome = dataclasses.replace(fake_report(name), columns=columns)
        self.fakes.engine.capture(5)
        batch = self.fakes.engine.hand_out(0)
        assert batch is not None
        merged = MergedTable(outcome=outcome, batch=batch, lag_seconds=1.0)
        with dg.build_op_context() as context:
            event = MergeReports(context, reported_tables(self.config, "shop", ())).event(merged)
        assert isinstance(event, dg.AssetMaterialization)
        return len(serialize_value(event))

    def merge(self) -> int:
        """Merges a batch with all tables, as the sensor would request it. Returns by how many bytes the files grew."""
        before = self._bytes()
        self.fakes.engine.capture(5)
        batch = self.fakes.engine.hand_out(0)
        assert batch is not None
        reference = BatchReference.of("shop", batch)
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            assert (
                self.defs.resolve_job_def("merge_shop_job")
                .execute_in_process(
                    instance=instance,
                    run_config={"ops": {"merge_shop": {"config": reference.to_config()}}},
                    tags=reference.to_tags(),
                )
                .success
            )
        self.fakes.engine.head = None
        return self._bytes() - before

    def _bytes(self) -> int:
        total = 0
        for file in self.home.rglob("*.db"):
            with contextlib.closing(sqlite3.connect(file)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            total += file.stat().st_size
        return total


@pytest.mark.scale
@pytest.mark.found
def test_a_batch_of_tables_that_share_an_asset_stores_less_than_a_kilobyte_for_each(tmp_path: Path) -> None:
    """Defect 27: each batch stored 44 kB in Dagster's storage for each of its tables."""
    stored = Stored(tmp_path, table_assets_max=TABLES - 1)
    stored.merge()
    grown = stored.merge()
    assert grown < BYTES_MAX * TABLES


@pytest.mark.scale
@pytest.mark.found
def test_a_table_with_an_asset_carries_its_columns_only_if_its_definition_shows_others(tmp_path: Path) -> None:
    """Defect 27: each batch stored the schema and the lineage of each table again, both twice."""
    stored, name = Stored(tmp_path, table_assets_max=TABLES), table_names(TABLES)[7]
    (table,) = (each for each in defined_tables(stored.config, "shop") if each.name == name)
    shown = DefinedColumns(stored.config, "shop").metadata(table)
    columns = tuple((each.name, each.type) for each in shown["dagster/column_schema"].value.columns)
    sizes = [stored.event_bytes(name, each) for each in ((*columns, ("note", "string")), columns)]
    assert sizes[1] < 0.55 * sizes[0], "ten columns are as large as the rest"
    assert sizes[1] < EVENT_BYTES_MAX


@pytest.mark.scale
def test_an_output_of_a_merge_does_not_repeat_the_metadata_of_its_materialization(tmp_path: Path) -> None:
    stored = Stored(tmp_path, table_assets_max=TABLES)
    stored.merge()
    with dg.DagsterInstance.from_config(str(stored.home)) as instance:
        (run,) = instance.get_runs()
        log = [each.dagster_event for each in instance.all_logs(run.run_id) if each.dagster_event]
    outputs = [each.step_output_data.metadata for each in log if each.is_successful_output]
    made = [each.materialization.metadata for each in log if each.is_step_materialization]
    assert outputs == [{}] * len(made)
    assert all(each["rows_changed"].value for each in made)


@pytest.mark.scale
def test_the_output_of_another_job_keeps_its_metadata(tmp_path: Path) -> None:
    @dg.op(out=dg.Out())
    def counts() -> dg.Output[int]:
        return dg.Output(1, metadata={"rows": 7})

    @dg.job
    def counting() -> None:
        counts()

    stored = Stored(tmp_path, table_assets_max=TABLES)
    with dg.DagsterInstance.from_config(str(stored.home)) as instance:
        run_id = counting.execute_in_process(instance=instance).run_id
        log = [each.dagster_event for each in instance.all_logs(run_id) if each.dagster_event]
    assert [each.step_output_data.metadata["rows"].value for each in log if each.is_successful_output] == [7]


@pytest.mark.found
def test_fault_a_run_whose_output_cannot_be_stored_ends_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1015: a run kept its transactions open while Dagster stored its outputs. After an error there, the run never ended."""
    stored, store_event = Stored(tmp_path, table_assets_max=TABLES), KeptEvents.store_event

    def fails(self: KeptEvents, event: dg.EventLogEntry) -> None:
        if event.is_dagster_event and event.get_dagster_event().is_step_materialization:
            raise OSError("No space left on device")
        store_event(self, event)

    monkeypatch.setattr(KeptEvents, "store_event", fails)
    with pytest.raises(OSError, match="No space left"):
        stored.merge()
    with dg.DagsterInstance.from_config(str(stored.home)) as instance:
        (run,) = instance.get_runs()
    assert run.status == dg.DagsterRunStatus.FAILURE
