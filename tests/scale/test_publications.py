"""Tests the publication of a thousand snapshots: how often the newest consistent snapshot, which names all tables, is written again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sluice.orchestration.run import consistent_snapshots as run_snapshots
from sluice.orchestration.run.consistent_snapshots import SHARE, SnapshotAmendments
from sluice.orchestration.run.table_locks import written_target
from sluice.spark_jobs import consistent_snapshots
from sluice.spark_jobs.consistent_snapshots import AmendedTable
from tests.fix_ledgers import at
from tests.scale.fix_many_tables import (
    MANY,
    counted,
    keep_lake_tables,
    make_destination,
    settle,
    table_name,
    table_names,
)

PUBLICATION_SECONDS, WRITE_SECONDS = 0.1, 0.5


class Written:
    """Replaces the write of the newest consistent snapshot. Each write advances a simulated clock by WRITE_SECONDS, and `tables` records
    its tables.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.tables = 0.0, list[list[str]]()
        monkeypatch.setattr(consistent_snapshots, "amend_newest", self._amend)

    def clock(self) -> float:
        return self.now

    def _amend(self, _path: str, amended: Iterable[AmendedTable], *_: Any) -> bool:
        self.now += WRITE_SECONDS
        self.tables.append([name for each in amended for name in each.tables])
        return True


@pytest.mark.scale
@pytest.mark.found
def test_the_newest_snapshot_is_written_again_for_many_publications_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 27: each publication wrote a row with all tables, which took 58 % of a run."""
    config, _ = make_destination(tmp_path, MANY)
    keep_lake_tables(config, MANY)
    written = Written(monkeypatch)
    amendments = SnapshotAmendments(config, "shop", written.clock)
    for number in range(MANY):
        written.now += PUBLICATION_SECONDS
        amendments.add(table_name(number), 1, str)
    amendments.write(str)
    seconds = MANY * PUBLICATION_SECONDS
    assert len(written.tables) <= seconds / (SHARE * WRITE_SECONDS) + 2
    assert sorted(name for names in written.tables for name in names) == [
        table_name(number) for number in range(MANY)
    ], "each of them once"


def test_a_table_that_was_created_again_before_the_row_was_written_is_left_to_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = make_destination(tmp_path, 3)
    kept = keep_lake_tables(config, 3)
    written = Written(monkeypatch)
    amendments = SnapshotAmendments(config, "shop", written.clock)
    for number in range(3):
        amendments.add(table_name(number), 1, str)
    kept.keep({table_name(1): ("another", 0), table_name(2): (f"id-{table_name(2)}", 9)})
    amendments.write(str)
    assert written.tables == [[table_name(0)], [table_name(2)]]
    assert not amendments.waiting


@pytest.mark.found
def test_a_table_that_raises_keeps_no_other_table_out_of_the_newest_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: an exception for one table's location left all waiting tables out of the snapshot, and failed their run."""
    config, _ = make_destination(tmp_path, 3)
    keep_lake_tables(config, 3)
    written = Written(monkeypatch)
    amendments = SnapshotAmendments(config, "shop", written.clock)
    for number in range(3):
        amendments.add(table_name(number), 1, str)
    real = run_snapshots._side_tables

    def odd(config: Any, destination: str, records: Any, name: str) -> Any:
        if name == table_name(1):
            raise KeyError("_sluice_operation")
        return real(config, destination, records, name)

    monkeypatch.setattr(run_snapshots, "_side_tables", odd)
    amendments.write(str)
    assert written.tables == [[table_name(0)], [table_name(2)]]


@pytest.mark.scale
@pytest.mark.found
def test_the_path_of_each_table_is_computed_once_for_the_snapshot_of_a_batch(tmp_path: Path) -> None:
    """Defect 27: each batch evaluated all settings of each table twice, also of tables that the batch did not change."""
    config, _ = make_destination(tmp_path, MANY)
    kept = keep_lake_tables(config, MANY)
    with counted() as found:
        current_states, side_tables = run_snapshots._recorded_tables(config, "shop", kept, set())
    assert len(current_states) == len(side_tables) == MANY
    assert found.named["table_path"] == MANY
    assert found.named["target"] == 0


@pytest.mark.scale
def test_the_paths_of_all_tables_are_compared_once_for_many_new_tables(tmp_path: Path) -> None:
    config, history = make_destination(tmp_path, MANY)
    with counted() as found:
        for name in table_names(20):
            assert not written_target(config, "shop")(name).clash
    assert found.named["clashing_tables"] == 1
    history.apply("CREATE TABLE `T00003` (id int PRIMARY KEY)", "shop", at(100))
    settle(config.destination_dir("shop"))
    with counted() as found:
        written_target(config, "shop")("shop.T00003")
        written_target(config, "shop")(table_name(4))
    assert found.named["clashing_tables"] == 1, "a new table may have the path of another one"
    other = config.model_copy()
    with counted() as found:
        written_target(other, "shop")(table_name(4))
    assert found.named["clashing_tables"] == 1, "another conf/ may give the tables other paths"
