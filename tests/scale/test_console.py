"""Tests what `sluice status` does while the snapshots of a thousand tables are open."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from sluice.cdc_engine.instance.tables import table_snapshots
from sluice.cdc_engine.snapshot.records import digest_of
from sluice.cdc_engine.states import SnapshotState
from sluice.console.acts import schema
from sluice.console.acts.long_list import LISTED_MAX
from sluice.console.acts.snapshot import listed, snapshots
from sluice.console.status.snapshots import open_snapshots
from tests.scale.fix_many_tables import (
    MANY,
    Counted,
    counted,
    growth,
    keep_lake_tables,
    make_destination,
    request_snapshots,
    settle,
    table_name,
    table_names,
)


def shown(root: Path, count: int) -> Counted:
    config, _ = make_destination(root, count)
    request_snapshots(config, count)
    keep_lake_tables(config, count)
    settle(config.destination_dir("shop"))
    with counted() as found:
        assert len(open_snapshots(config, "shop", 100.0)) == len(snapshots(config)) == count
    return found


@pytest.mark.scale
@pytest.mark.found
def test_status_reads_each_snapshot_once(tmp_path: Path) -> None:
    """Defect 27: for each snapshot, `status` took the lock of the reading run and read the record again."""
    found = shown(tmp_path, MANY)
    assert found.named["are_read"] == 1
    records = {f"{digest_of(name)}.json" for name in table_names(MANY)}
    assert sum(found.read[record] for record in records) == 2 * MANY, "that of the table, and that of its snapshot"


@pytest.mark.scale
@pytest.mark.found
def test_status_costs_the_same_for_each_snapshot(tmp_path: Path) -> None:
    """Defect 27: to decide whether one snapshot waits for others, `status` looked at all others, which took 11 s for 3,000 tables."""
    assert growth(tmp_path, shown) < 2.2


@pytest.mark.scale
def test_snapshot_status_lists_some_of_many_and_counts_the_others(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, MANY)
    records = request_snapshots(config, MANY)
    records.update(table_name(MANY - 1), lambda now: now.failed("its rows cannot be read"))
    shown = snapshots(config)
    some, others = listed(shown)
    assert len(some) == LISTED_MAX
    assert some[0].record.name == table_name(MANY - 1), "failed snapshots come first"
    assert others == f"… and {MANY - LISTED_MAX} more ({MANY - LISTED_MAX} WANTED): `sluice snapshot status --verbose`"
    assert listed(shown[:LISTED_MAX]) == (shown[:LISTED_MAX], "")


@pytest.mark.scale
def test_schema_show_lists_stopped_tables_first_and_counts_the_others(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, MANY)
    tables = schema.schema_json(config, "shop")
    tables[-1]["state"] = "DDL_UNSUPPORTED"
    some, others = schema.listed("shop", tables)
    assert len(some) == LISTED_MAX
    assert some[0] is tables[-1]
    assert (
        others == f"… and {MANY - LISTED_MAX} more ({MANY - LISTED_MAX} FLOWING): `sluice schema show shop --verbose`"
    )
    assert schema.listed("shop", tables[:LISTED_MAX]) == (tables[:LISTED_MAX], "")


@pytest.mark.scale
def test_snapshot_status_decides_no_next_step_if_no_snapshot_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code that decides next steps imports the kernels, which takes a second."""
    config, _ = make_destination(tmp_path, 2)
    records = request_snapshots(config, 2)
    for name in table_names(2):
        records.update(name, lambda now: dataclasses.replace(now, state=SnapshotState.PUBLISHED))
    monkeypatch.setattr(table_snapshots, "decisions", mock.Mock(side_effect=AssertionError))
    assert [each.record.state for each in snapshots(config)] == [SnapshotState.PUBLISHED] * 2


@pytest.mark.scale
@pytest.mark.parametrize(
    "module", ["sluice.console.acts.schema", "sluice.console.acts.snapshot", "sluice.console.status.report"]
)
def test_commands_that_show_tables_import_no_kernels(module: str) -> None:
    """Importing numba and the kernels would take a quarter of the time of a command."""
    code = f"import sys, {module}; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
