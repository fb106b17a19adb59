"""Tests tables without a current-state table: their change log and history have the same content as with a current-state table."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.side_tables.write import Share, names_given, write_alone
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import TableRecord
from tests.spark.side_tables.fix_side_tables import NAME, ORDERS, LoggedTable, changes, delete, insert, update
from tests.spark.staged import Changes, Records, Schema, SchemaChange


@dataclasses.dataclass
class Alone(LoggedTable):
    """Merges the batches of a LoggedTable without a current-state table. `records` has what runs record about the table."""

    records: Records = dataclasses.field(default_factory=Records)

    def merge_staged(self, directory: Path, **wanted: Any) -> TableReport:
        batch = read_staged_batch(directory)
        target = dataclasses.replace(self.target, **{"current_state": False, **wanted})
        return write_alone(
            None,
            Share(
                batch=batch,
                staged=batch.tables[0],
                target=target,
                context=MergeContext(
                    records=self.records,
                    target_of=lambda _name: dataclasses.replace(self.target, history=f"{self.folder}/before__history"),
                ),
                renamed=names_given(batch),
            ),
        )


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(tmp_path)


def test_without_a_current_state_table_each_batch_is_in_log_and_history_once_history(alone: Alone) -> None:
    first = alone.stage(changes([insert(1, 16, "a"), insert(2, 16, "b")]))
    report = alone.merge_staged(first)
    assert (report.path, report.delta_version_before, report.source_inserts) == (alone.target.history, -1, 2)
    assert not report.skipped
    second = alone.stage(changes([update(1, 32, "A"), delete(2, 48)]))
    alone.merge_staged(second)
    again = alone.merge_staged(second)
    assert again.skipped
    assert alone.history() == [(1, "a", 16, 32, False), (1, "A", 32, None, True), (2, "b", 16, 48, False)]
    log = alone.rows(alone.target.change_log, "operation, order_key", 'order_key, "row"')
    assert log == [("insert", 16), ("insert", 16), ("update", 32), ("delete", 48)]
    assert not Path(alone.target.path).exists()
    kept = {kind: record.version for (_, kind), record in alone.records.side_records.items()}
    assert kept == {kind: deltalake.DeltaTable(path).version() for kind, path in alone.paths.items()}


def test_a_table_without_a_key_and_a_current_state_table_has_its_log_history(alone: Alone) -> None:
    schema = Schema({"id": "bigint", "note": "string"}, ())
    images = [insert(1, 16), insert(1, 16)]
    report = alone.merge_staged(alone.stage(Changes(schema, images, log=images)), history="")
    assert report.path == alone.target.change_log
    assert alone.rows(alone.target.change_log, 'operation, "row"', '"row"') == [("insert", 1), ("insert", 2)]


def test_a_lost_history_without_a_current_state_table_is_not_started_again_silently_history(alone: Alone) -> None:
    alone.merge_staged(alone.stage(changes([insert(1, 16)])))
    shutil.move(alone.target.history, f"{alone.folder}/away")
    with pytest.raises(TableError, match=r"is missing.*sluice lake accept shop shop\.orders") as refused:
        alone.merge_staged(alone.stage(changes([insert(2, 32)])))
    assert (refused.value.state, refused.value.for_good) == ("TABLE_MISSING", True)


def test_a_restored_log_without_a_current_state_table_is_refused_by_name_history(alone: Alone) -> None:
    for number in (1, 2):
        alone.merge_staged(alone.stage(changes([insert(number, 16 * number)])), history="")
    deltalake.DeltaTable(alone.target.change_log).restore(1)
    with pytest.raises(TableError, match="RESTORE by another program") as refused:
        alone.merge_staged(alone.stage(changes([insert(3, 64)])), history="")
    assert refused.value.state == "TABLE_RESTORED"


def test_a_history_that_replaces_a_current_state_table_begins_with_its_rows_once_history(alone: Alone) -> None:
    alone.merge(alone.stage(changes([insert(1, 16, "a"), insert(2, 32, "b")])))
    current_state = deltalake.DeltaTable(alone.target.path)
    alone.records.keep(NAME, TableRecord(table_id=str(current_state.metadata().id), version=current_state.version()))
    alone.merge_staged(alone.stage(changes([update(1, 48, "A")])))
    assert alone.history() == [(1, "a", 16, 48, False), (1, "A", 48, None, True), (2, "b", 32, None, True)]
    assert alone.records.get(NAME) is None


def test_a_current_state_table_that_was_left_long_ago_gives_a_new_history_no_rows_history(alone: Alone) -> None:
    alone.merge(alone.stage(changes([insert(1, 16, "a")])))
    alone.merge_staged(alone.stage(changes([insert(2, 32, "b")])), history="")
    alone.merge_staged(alone.stage(changes([insert(3, 48, "c")])))
    assert alone.history() == [(3, "c", 48, None, True)]
    log = alone.rows(alone.target.change_log, "operation, order_key", "order_key")
    assert log == [("insert", 32), ("insert", 48)]


def test_rows_of_a_renamed_table_are_requested_and_the_old_name_stays_history(alone: Alone) -> None:
    former = Alone(alone.folder, name="shop.before", deliveries=alone.deliveries)
    former.merge_staged(
        former.stage(changes([insert(1, 16, "a")])), history=f"{alone.folder}/before__history", change_log=""
    )
    with pytest.raises(TableError, match="snapshot start") as refused:
        alone.merge_staged(alone.stage(SchemaChange(32, ORDERS, renamed_from="shop.before")))
    assert refused.value.state == "DDL_UNSUPPORTED"
    left = alone.rows(f"{alone.folder}/before__history", "id, _sluice_to_order_key, is_current", "id")
    assert left == [(1, 32, False)]
