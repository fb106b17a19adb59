"""Tests "Materialize" on an asset without a batch. The run requests a re-snapshot of the asset's table, or fails and says why."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.orchestration.base.table_catalog import delta_key
from sluice.orchestration.code_location import build_definitions
from tests.fix_ledgers import FileLedger
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables


def pressed(root: Path, *, begun: bool) -> tuple[dg.ExecuteInProcessResult, Path]:
    """Executes the run of "Materialize" on one table. Returns its result, and the destination's directory. With `begun`, the destination
    has a cursor.
    """
    config = make_config(root)
    directory = config.destination_dir("shop")
    write_tables(directory)
    if begun:
        cursor = Position(epoch=1, file="b.000001", offset=400)
        FileLedger(directory).update(lambda ledger: ledger.set_cursor(cursor))
    job = build_definitions(config, make_fake_ports(config).ports()).resolve_job_def("merge_shop_job")
    selection = [delta_key("shop", "shop.orders")]
    return job.execute_in_process(asset_selection=selection, raise_on_error=False), directory


def test_materialize_requests_a_snapshot_of_only_this_table(tmp_path: Path) -> None:
    result, directory = pressed(tmp_path, begun=True)
    assert result.success
    (requested,) = SnapshotRecords(directory).all()
    assert (requested.name, requested.state) == ("shop.orders", SnapshotState.WANTED)
    assert not result.asset_materializations_for_node("merge_shop"), "the publication will be one"
    (reported,) = result.asset_observations_for_node("merge_shop")
    assert reported.metadata["snapshot_state"].value == "WANTED"


def test_materialize_says_why_there_can_be_no_snapshot(tmp_path: Path) -> None:
    result, directory = pressed(tmp_path, begun=False)
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "has no position yet" in str(failed.step_failure_data.user_failure_data)
    assert not SnapshotRecords(directory).all()
