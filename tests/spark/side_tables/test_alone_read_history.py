"""Tests tables that have only a change log or a history, without Spark. The change log has the rows of a snapshot, a reader of the history
gets its open versions as rows, and consistent snapshots name both.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import LakeColumn
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.destination_files import LakeTables
from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.equality.history_side import HistorySide
from sluice.equality.table_plan import ORDER_KEY
from sluice.object_stores.stored_files import StoredFiles
from sluice.orchestration.run.consistent_snapshots import publish_for_batch
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.snapshot.publication import Publication
from sluice.spark_jobs.snapshot.publish import publish
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import Owner
from tests.fix_ledgers import FileLedger, full_ledger
from tests.spark.side_tables.fix_side_tables import NAME, changes, delete, insert, update
from tests.spark.side_tables.test_alone_history import Alone
from tests.spark.staged import LEDGER_ID, TIME_US, UPDATE_AFTER, Changes, Image, Schema, SchemaChange

SESSION: Any = SimpleNamespace(expect=lambda _rows: None, fence=BY_HAND)  # A change log needs no Spark.


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(tmp_path)


def test_rows_that_were_read_are_in_the_log_once_before_what_changed_since_snapshot(alone: Alone) -> None:
    alone.merge_staged(alone.stage(changes([insert(1, 64, "a"), update(2, 80, "B")])), history="")
    chunks = alone.folder / "read-chunks-0"
    chunks.mkdir()
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "note": ["a", "b"]})
    pq.write_table(rows, chunks / "000001.parquet")
    target = SimpleNamespace(**{**vars(alone.target), "current_state": False, "history": ""})
    given = Publication(
        snapshot_id="0123456789ab",
        owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME),
        target=type(alone.target)(**vars(target)),
        columns=(LakeColumn(name="id", type="bigint"), LakeColumn(name="note", type="string")),
        key=("id",),
        chunks=StoredFiles(folder=chunks),
        rows=2,
        changes=StoredFiles(folder=alone.folder / "held"),
        cascades=StoredFiles(folder=alone.folder / "cascades"),
        order_key=80,
        read_at_us=TIME_US,
        run="r",
        epoch=1,
        start={},
        end={},
        since=48,
    )
    for _ in range(2):  # The publication is repeated.
        published = publish(SESSION, given, {}, alone.records)
    assert (published.rows, published.label) == (2, 80)
    log = alone.rows(
        alone.target.change_log, "operation, order_key, after['id'], after['note']", "order_key, after['id']"
    )
    assert [row for row in log if row[0] == "read"] == [
        ("read", 48, 1, "a"),
        ("read", 48, 2, "b"),
        ("read", 80, None, None),
    ]
    assert [row for row in log if row[0] != "read"] == [("insert", 64, 1, "a"), ("update", 80, 2, "B")]
    assert ("shop.orders", "log") in alone.records.side_records


def test_what_is_open_in_a_history_is_read_as_the_rows_of_the_table_equality(alone: Alone) -> None:
    alone.merge_staged(alone.stage(changes([insert(1, 16, "1"), insert(2, 16, "2"), insert(3, 16, "3")])))
    alone.merge_staged(alone.stage(changes([update(1, 32, "7"), delete(2, 48)])))
    numbered = Schema({"id": "bigint", "note": "int"}, ("id",))
    alteration = {"kind": "convert", "column": "note"}
    images = [Image(UPDATE_AFTER, 80, {"id": 3, "note": 30})]
    statement = SchemaChange(64, numbered, alterations=(alteration,))
    alone.merge_staged(alone.stage(statement, Changes(numbered, images, log=images)))
    side = HistorySide(NAME, alone.target.history, {}, {"id": "bigint", "note": "int"})
    assert side.columns() == {"id": "bigint", "note": "int", ORDER_KEY: "bigint"}
    plan: Any = SimpleNamespace(columns=[SimpleNamespace(name="id"), SimpleNamespace(name="note")])
    found = pa.Table.from_batches(side.rows(plan)).sort_by("id").to_pylist()
    assert [row["id"] for row in found] == [1, 3]
    assert found[1] == {"id": 3, "note": 30, ORDER_KEY: 80}
    assert side.spelled("NOTE") == "note__int"


def test_a_consistent_snapshot_names_logs_and_histories_and_no_current_state_table_that_conf_lacks(
    alone: Alone,
) -> None:
    conf = alone.folder / "conf"
    (conf / "destinations").mkdir(parents=True)
    (conf / "sluice.yaml").write_text(f"data_dir: {alone.folder}/data\nlake: {alone.folder}/lake\n")
    words = "tables: {shop.orders: {current_state: false, history: true, change_log: true}}"
    (conf / "destinations" / "shop.yaml").write_text(f"source: {{user: root}}\n{words}\n")
    config = load_config(conf)
    directory = config.destination_dir("shop")
    FileLedger(directory).update(lambda _: full_ledger())
    staged = alone.stage(changes([insert(1, 16, "a")]))
    alone.merge_staged(staged)
    records = LakeTables(directory)
    records.keep({NAME: ("a current_state that was", 3), "shop.items": ("items", 5)})
    for (name, kind), record in alone.records.side_records.items():
        records.keep_side_table(name, kind, (record.table_id, record.version))
    publish_for_batch(config, "shop", "run", read_staged_batch(staged), BY_HAND, buffered=[NAME])
    tables = read_consistent_snapshot(config.lake, "shop").tables
    assert set(tables) == {"shop.items", f"{NAME}__log", f"{NAME}__history"}
    history = tables[f"{NAME}__history"]
    assert (history.path, history.stopped) == (alone.target.history, False)
