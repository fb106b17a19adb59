"""Tests a table with `current_state: false` from the source to the lake: what works, and what is refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest

from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.console.lake.accept import Acceptance, accept
from sluice.console.lake.history import captured_table, history_of
from sluice.console.lake.life import known_life
from sluice.console.lake.sql import run_query
from sluice.console.lake.tables import DestinationLake
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, TableResult
from sluice.orchestration.run.rows.repair import plan_repair
from sluice.orchestration.run.rows.request import RepairRequest
from sluice.orchestration.run.spark_publish import spark_publish
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]


class Alone(Pipeline):
    """A pipeline of one table with a history and a change log instead of a current-state table."""

    def compared(self, engine: Engine) -> TableResult:
        """Compares the table. Changes that the source has meanwhile are merged first."""
        self.merge(engine)
        requested = ComparedDestination(self.config, "shop", source_of(self.config.destinations["shop"]))
        (found,) = compare_destination(requested, (), Extent(settle_seconds=60.0))
        return found

    def resnapshot(self, engine: Engine) -> None:
        """Does what `sluice snapshot start` does, with all its runs."""
        snapshot.start(self.captured.directory, [self.name])
        records = SnapshotRecords(self.captured.directory)
        outside = SnapshotCallbacks(
            run_lock=contextlib.nullcontext,
            publish=lambda record, table: spark_publish(self.config, "shop", record, table, "run", refusal=str).label,
            say=print,
            progress=lambda _: None,
        )

        def is_published() -> bool:
            self.merge_next(engine)
            run_all(snapshot_dependencies(self.config, "shop", outside), 0.0)
            return not any(each.has_work for each in records.all())

        wait_for("its rows are published", is_published, 180)


def refused(act: Callable[[], object], *words: str) -> None:
    with pytest.raises((ActRefusedError, ConfigurationError)) as error:
        act()
    assert all(word in str(error.value) for word in words), error.value


def test_a_table_without_a_current_state_table_is_compared_re_snapshotted_and_queried_history(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    pipeline = Alone(tmp_path, mysql80, spark_server, current_state=False, history=True, change_log=True)
    numbers, history = pipeline.name, f"{pipeline.path}__history"
    with running(pipeline.captured) as engine:
        pipeline.captured.insert(range(4))
        pipeline.change(f"UPDATE {numbers} SET filler = 'new' WHERE n = 2", f"DELETE FROM {numbers} WHERE n = 3")
        assert pipeline.compared(engine).equal
        assert pipeline.open_versions() == {0: "", 1: "", 2: "new"}
        assert not Path(pipeline.path).exists()
        pipeline.by_another_hand(f"UPDATE delta.`{history}` SET filler = 'wrong' WHERE n = 1 AND is_current")
        found = pipeline.compared(engine)
        assert [each.kind for each in found.differences] == ["value"]
        (planned,) = plan_repair(pipeline.config, RepairRequest(destination="shop", settle_seconds=60.0))
        assert "no current-state table" in planned.refused
        refused(lambda: pipeline.backfill(-999), "no current-state table", "snapshot start")
        refused(
            lambda: known_life(captured_table(pipeline.config, numbers), "1"), "no current-state table", "sluice sql"
        )
        pipeline.resnapshot(engine)
        assert pipeline.compared(engine).equal, "what `repair` would have done"
        snapshot = read_consistent_snapshot(pipeline.config.lake, "shop")
        assert set(snapshot.tables) == {f"{numbers}__log", f"{numbers}__history"}
        assert snapshot.tables[f"{numbers}__history"].version == deltalake.DeltaTable(history).version()
        (count,) = run_query(
            pipeline.config, f"SELECT count(*) FROM {numbers}__history WHERE n < 1000 AND is_current"
        ).rows()
        assert count == (3,)
        (reads,) = run_query(pipeline.config, f"SELECT count(*) FROM {numbers}__log WHERE operation = 'read'").rows()
        assert reads[0] > 3, "each row, and that they were read"
        assert history_of(captured_table(pipeline.config, numbers))[0].ours
        (lake_table,) = DestinationLake(pipeline.config, "shop").tables()
        assert (lake_table.path, lake_table.owner is not None) == (history, True)
    deltalake.DeltaTable(history).restore(1)
    accept(
        pipeline.config,
        Acceptance(destination="shop", name=numbers, as_it_is=True),
        confirm=lambda _: True,
        say=print,
    )
    kept = LakeTables(pipeline.captured.directory).side_tables(numbers)
    assert kept["history"][1] == deltalake.DeltaTable(history).version()
