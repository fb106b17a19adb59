"""Tests docs/analysts.ipynb. Its cells run in order over a lake that production code writes without Spark, and must print the output that
the notebook shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sluice.consistent_snapshot.find import consistent_snapshots_path
from sluice.spark_jobs.conflicts import CommitConflicts
from sluice.spark_jobs.consistent_snapshots import PublishedTables, publish_consistent_snapshot
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.merging.context import BY_HAND_CONTEXT
from sluice.spark_jobs.side_tables.write import Share, write_side_tables
from sluice.spark_jobs.small.merge import SmallJob, merge_small
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import TableRecord
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Changes, Image, Schema, stage

NOTEBOOK = Path(__file__).parents[2] / "docs" / "analysts.ipynb"
ORDERS = Schema({"id": "bigint", "customer_id": "bigint", "status": "string", "amount": "decimal(10,2)"}, ("id",))
CUSTOMERS = Schema({"id": "bigint", "name": "string"}, ("id",))


def order(operation: int, index: int, values: tuple[int, int, str, int]) -> Image:
    return Image(operation, index, dict(zip(ORDERS.columns, values, strict=True)))


def moved(index: int, key: int, customer: int, was: str, became: str) -> list[Image]:
    return [
        order(UPDATE_BEFORE, index, (key, customer, was, 10 * key)),
        order(UPDATE_AFTER, index, (key, customer, became, 10 * key)),
    ]


def customer(index: int, key: int, name: str) -> Image:
    return Image(INSERT, index, {"id": key, "name": name})


def batches() -> list[dict[str, list[Changes]]]:
    first = [order(INSERT, 16 * key, (key, 1 + key % 2, "open", 10 * key)) for key in (1, 2, 3)]
    second = [
        *moved(64, 1, 2, "open", "paid"),
        *moved(80, 2, 1, "open", "paid"),
        *moved(96, 1, 2, "paid", "sent"),
        order(DELETE, 112, (3, 2, "open", 30)),
    ]
    merged = [image for image in second if image.operation != UPDATE_BEFORE]
    return [
        {
            "shop.customers": [Changes(CUSTOMERS, [customer(16, 1, "Ada"), customer(16, 2, "Grace")])],
            "shop.orders": [Changes(ORDERS, first, log=first)],
        },
        {"shop.orders": [Changes(ORDERS, merged, log=second)]},
    ]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a lake as two batches leave it."""
    folder = tmp_path_factory.mktemp("analysts")
    lake, records = str(folder / "lake"), dict[str, tuple[str, TableRecord]]()
    for number, tables in enumerate(batches(), start=1):
        batch = read_staged_batch(stage(folder / "staging", tables, delivery=number))
        for staged in batch.tables:
            path = f"{lake}/{staged.database}/{staged.table}"
            target = TableTarget(path=path, merge="small")
            if staged.table == "orders":
                target = dataclasses.replace(target, change_log=f"{path}__log", history=f"{path}__history")
            job = SmallJob(
                batch=dataclasses.replace(batch, tables=()),
                staged=staged,
                target=target,
                known=None,
                staged_at=0.0,
                storage_options={},
                makes_tables=True,
            )
            result = merge_small(job, CommitConflicts())
            assert isinstance(result, tuple), result
            write_side_tables(None, Share(batch=batch, staged=staged, target=target, context=BY_HAND_CONTEXT))
            records[staged.name] = (path, result[1])
        publish_consistent_snapshot(
            _ended(batch),
            consistent_snapshots_path(lake, "shop"),
            PublishedTables(tables=records, stopped=(), run="r"),
            BY_HAND,
        )
    _feed(f"{lake}/shop/payments")
    return lake


def _ended(batch: StagedBatch) -> StagedBatch:
    return dataclasses.replace(batch, end={**batch.end, "time_us": 1_700_000_000_000_112})


def _feed(path: str) -> None:
    rows = pa.table({"id": [1, 2], "paid": [False, False]})
    deltalake.write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})
    deltalake.DeltaTable(path).update({"paid": "true"}, predicate="id = 2")


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(lake: str) -> list[str]:
    """Returns what each cell prints."""
    space: dict[str, Any] = {}
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_LAKE", lake)
        for cell in cells():
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile("".join(cell["source"]), cell["id"], "exec"), space)  # noqa: S102  it is our own page
            found.append(said.getvalue())
    return found


def test_each_cell_of_the_notebook_prints_what_stands_under_it(lake: str) -> None:
    shown = ["".join(line for each in cell["outputs"] for line in each["text"]) for cell in cells()]
    assert printed(lake) == shown
    assert all(shown)
