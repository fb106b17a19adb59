"""Tests the rules that decide whether a Delta table is the one that this ledger left, with an example for each. The tests use no Spark."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from sluice.cdc_engine.position import EPOCH_BITS, order_key
from sluice.spark_jobs import staged_batch
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.table_owner import (
    TABLE_REPLACED,
    TABLE_RESTORED,
    FoundTable,
    LakeWriter,
    Owner,
    TableRecord,
    behind_our_back,
    refuse_unless_ours,
)

OURS = Owner(ledger_id="0123456789ab", destination="shop", table="shop.orders")
END = {"epoch": 2, "file": "binlog.000003", "offset": 900}
START = {"epoch": 1, "file": "binlog.000009", "offset": 500}
WRITER = LakeWriter(owner=OURS, epoch=2, delivery=7, start=START, end=END)
LEFT = TableRecord(table_id="t-1", version=5)
THERE = FoundTable(
    exists=True, path="/lake/shop/orders", table_id="t-1", version=5, owner=OURS.to_text(), applied_epoch=2, commits=()
)
GONE = FoundTable(exists=False, path="/lake/shop/orders")


def commit(
    operation: str, *, delivery: int = 0, ledger: str = OURS.ledger_id, mode: str = "", end: Mapping[str, Any] = END
) -> Mapping[str, Any]:
    batch = {"sluice": 1, "ledger": ledger, "delivery": delivery, "end": end}
    metadata = {"userMetadata": json.dumps(batch)} if delivery else {}
    return {"version": 6, "operation": operation, "operationParameters": {"mode": mode} if mode else None, **metadata}


def restored(version: int) -> Mapping[str, Any]:
    return {**commit("RESTORE"), "operationParameters": {"version": str(version), "timestamp": None}}


def after(*commits: Mapping[str, Any]) -> FoundTable:
    """Returns the table with commits after version 5, the newest first, as Delta lists them."""
    numbered = [{**each, "version": 6 + index} for index, each in enumerate(commits)]
    return dataclasses.replace(THERE, version=5 + len(commits), commits=numbered[::-1])


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (None, GONE),
        (None, THERE),
        (None, dataclasses.replace(THERE, owner="", applied_epoch=-1)),
        (LEFT, dataclasses.replace(THERE, owner="", written_before=True)),  # The property was removed by hand.
        (LEFT, THERE),
        (LEFT, after(commit("OPTIMIZE"), commit("VACUUM START"), commit("SET TBLPROPERTIES"))),
        (LEFT, after(commit("MERGE", delivery=7))),
        (LEFT, after(commit("MERGE", delivery=6, end=START))),
        (LEFT, after(commit("MERGE", delivery=6, end={**START, "file": "binlog.000008", "offset": 900}))),
        # The batch was read again in the epoch of the commit, so its changes have the same order keys as in the commit.
        (LEFT, after(commit("MERGE", delivery=6, end={**END, "offset": 901}))),
        # The table was accepted as it is.
        (LEFT, dataclasses.replace(THERE, commits=({**commit("RESTORE"), "version": 5},))),
        (LEFT, after(commit("MERGE", delivery=9, ledger="ffffffffffff"))),
        (LEFT, after(commit("WRITE", mode="Append"))),
        (LEFT, after(restored(3), restored(5))),  # All commits are back.
        (LEFT, after(commit("MERGE", delivery=7), restored(3), restored(6))),
    ],
)
def test_identity_a_table_that_is_ours_is_written(record: TableRecord | None, found: FoundTable) -> None:
    refuse_unless_ours(WRITER, record, found)


@pytest.mark.parametrize(
    ("state", "record", "found"),
    [
        ("TABLE_MISSING", LEFT, GONE),
        (
            "TABLE_OWNED",
            None,
            dataclasses.replace(THERE, owner=dataclasses.replace(OURS, ledger_id="f" * 12).to_text()),
        ),
        ("TABLE_OWNED", None, dataclasses.replace(THERE, owner=dataclasses.replace(OURS, table="shop.b").to_text())),
        ("TABLE_OWNED", None, dataclasses.replace(THERE, owner="somebody")),
        ("TABLE_UNOWNED", None, dataclasses.replace(THERE, owner="", applied_epoch=-1, written_before=True)),
        ("TABLE_REPLACED", LEFT, dataclasses.replace(THERE, table_id="t-2")),
        ("TABLE_RESTORED", LEFT, dataclasses.replace(THERE, version=4)),
        ("TABLE_RESTORED", LEFT, after(commit("RESTORE"))),
        ("TABLE_RESTORED", LEFT, after(commit("OPTIMIZE"), commit("CREATE OR REPLACE TABLE AS SELECT"))),
        ("TABLE_RESTORED", LEFT, after(commit("WRITE", mode="Overwrite"))),
        ("TABLE_RESTORED", LEFT, after(restored(5), restored(4))),
        ("TABLE_RESTORED", LEFT, after(restored(3), restored(6))),
        # The rows that the run merged are gone.
        ("TABLE_RESTORED", LEFT, after(commit("MERGE", delivery=7), restored(5))),
        ("TABLE_RESTORED", LEFT, after(restored(3), commit("MERGE", delivery=7))),
        ("TABLE_AHEAD", None, dataclasses.replace(THERE, applied_epoch=3)),
        ("TABLE_AHEAD", LEFT, after(commit("MERGE", delivery=8))),
        ("TABLE_AHEAD", LEFT, after(commit("MERGE", delivery=6, end={**START, "offset": 501}))),
        ("TABLE_AHEAD", LEFT, after(commit("MERGE", delivery=6, end={**START, "file": "binlog.000010"}))),
        ("TABLE_AHEAD", LEFT, after(commit("MERGE", delivery=7, end={**END, "offset": 800}))),
        ("TABLE_AHEAD", LEFT, dataclasses.replace(THERE, commits=({**commit("MERGE", delivery=8), "version": 5},))),
    ],
)
def test_identity_a_table_that_is_not_is_refused_by_name_with_a_way_out(
    state: str, record: TableRecord | None, found: FoundTable
) -> None:
    with pytest.raises(TableError) as refusal:
        refuse_unless_ours(WRITER, record, found)
    assert (refusal.value.state, refusal.value.for_good) == (state, True)
    assert "`sluice lake accept shop shop.orders`" in str(refusal.value)
    assert pickle.loads(pickle.dumps(refusal.value)).state == state  # noqa: S301  ours, made a line above


@pytest.mark.found
def test_identity_a_restore_past_a_small_merge_that_no_record_has_is_refused() -> None:
    """Defect 13: a merge of `deltalake` has a predicate and counted as a shard's rewrite. If a RESTORE removed it, nothing noticed."""
    merged = {**commit("MERGE", delivery=7), "operationParameters": {"predicate": "id >= 10 AND id <= 21"}}
    with pytest.raises(TableError) as refusal:
        refuse_unless_ours(WRITER, LEFT, after(merged, restored(5)))
    assert refusal.value.state == TABLE_RESTORED
    refuse_unless_ours(WRITER, LEFT, after(merged, restored(6)))


def test_ddl_identity_a_table_that_took_over_rows_of_another_is_ours() -> None:
    """CREATE OR REPLACE TABLE with the rows of a renamed table is accepted as a commit of the table's owner. This also holds if the merge
    was interrupted before the table's new id was recorded. The same statement by another program, table or ledger is refused.
    """

    def replaced(table: str, ledger: str = OURS.ledger_id) -> Mapping[str, Any]:
        batch = {"sluice": 1, "ledger": ledger, "table": table, "delivery": 7, "end": END}
        return {**commit("CREATE OR REPLACE TABLE AS SELECT"), "userMetadata": json.dumps(batch)}

    def found(*commits: Mapping[str, Any]) -> FoundTable:
        return dataclasses.replace(after(*commits), table_id="t-2")

    refuse_unless_ours(WRITER, LEFT, found(replaced(OURS.table)))
    refuse_unless_ours(WRITER, LEFT, found(replaced(OURS.table), commit("MERGE", delivery=7)))
    assert not behind_our_back(OURS, LEFT, found(replaced(OURS.table)))
    for other, state in (
        (found(replaced("shop.items")), TABLE_REPLACED),
        (found(replaced(OURS.table, ledger="another")), TABLE_REPLACED),
        (found(commit("CREATE OR REPLACE TABLE AS SELECT")), TABLE_REPLACED),
        (found(replaced(OURS.table), commit("RESTORE")), TABLE_RESTORED),
    ):
        with pytest.raises(TableError) as reported:
            refuse_unless_ours(WRITER, LEFT, other)
        assert reported.value.state == state


def test_identity_owners_are_read_back() -> None:
    assert Owner.from_text(OURS.to_text()) == OURS


def test_identity_runs_and_engine_read_the_epoch_of_an_order_key_alike() -> None:
    assert staged_batch.EPOCH_BITS == EPOCH_BITS
    for epoch in (0, 1, (1 << EPOCH_BITS) - 1):
        assert staged_batch.epoch_of(order_key(epoch, 3, 4711)) == epoch
