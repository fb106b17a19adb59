"""Tests a commit that another commit preceded: it is repeated, unless the other commit was more than maintenance. The
tests use no Spark.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from sluice.spark_jobs.conflicts import COMMIT_TRIES_MAX, CommitConflicts
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.merge import _TableMerge
from sluice.spark_jobs.table_owner import OWNER_PROPERTY, FoundTable, LakeWriter, Owner, TableRecord
from sluice.spark_jobs.tables.commit_record import CommitCounts
from sluice.spark_jobs.tables.delta_table import DeltaSnapshot
from sluice.spark_jobs.targets.report import TableTarget

OURS = Owner(ledger_id="0123456789ab", destination="shop", table="shop.orders")
WRITER = LakeWriter(owner=OURS, epoch=1, delivery=1)
REPORTED = "(io.delta.exceptions.ConcurrentAppendException) [DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected."


class Table:
    """A Delta table to which `others` are committed, one each time that a merge is about to commit."""

    name, path = "shop.orders", "/lake/orders"

    def __init__(self, *others: str) -> None:
        self._others = list(others)
        self._commits: list[dict[str, Any]] = []
        self.snapshot = DeltaSnapshot(
            version=3, columns={}, properties={OWNER_PROPERTY: OURS.to_text()}, applied_order_key=-1
        )

    def commit(self) -> None:
        """Raises what Delta says where another was faster."""
        operation = self._others.pop(0) if self._others else "MERGE"
        self._commits.insert(0, {"version": 4 + len(self._commits), "operation": operation})
        if operation != "MERGE":
            raise RuntimeError(REPORTED)

    def refresh(self) -> DeltaSnapshot:
        self.snapshot = dataclasses.replace(self.snapshot, version=3 + len(self._commits))
        return self.snapshot

    def found(self, record: TableRecord, _owner: str = "") -> FoundTable:
        later = [each for each in self._commits if each["version"] > record.version]
        return FoundTable(
            exists=True, path=self.path, version=self.snapshot.version, owner=OURS.to_text(), commits=later
        )

    def own_commit(self, before: int, *_: object) -> CommitCounts:
        assert self.snapshot.version == before + 1
        return CommitCounts(rows_inserted=1)


class LakeSession:
    def __init__(self, table: Table) -> None:
        self._table, self.versions = table, list[int]()

    def commit_as(self, app_id: str, version: int, user_metadata: str) -> None:  # noqa: ARG002  as Lane
        self.versions.append(version)

    def commit(self, name: str, statement: str) -> None:  # noqa: ARG002  as Lane
        self._table.commit()


def merging(*others: str) -> tuple[_TableMerge, LakeSession]:
    table = Table(*others)
    session = LakeSession(table)
    target = TableTarget(path=table.path)
    return _TableMerge(session, table, target, "app", WRITER, "{}", None, CommitConflicts()), session  # type: ignore[arg-type]


@pytest.mark.parametrize("conflicts", range(COMMIT_TRIES_MAX))
def test_fault_a_merge_that_a_user_s_optimize_came_before_is_done_again(conflicts: int) -> None:
    merge, session = merging(*itertools.repeat("OPTIMIZE", conflicts))
    assert merge._commit("MERGE", 7) == CommitCounts(rows_inserted=1)
    assert session.versions == [7] * (conflicts + 1), "under the same transaction"
    assert merge.conflicts.of("shop.orders") == conflicts


def test_fault_a_user_who_never_ends_tidying_stops_no_table() -> None:
    merge, session = merging(*itertools.repeat("OPTIMIZE", 99))
    with pytest.raises(TableError, match="other writers committed to the Delta table") as refused:
        merge._commit("MERGE", 7)
    assert not refused.value.own
    assert len(session.versions) == COMMIT_TRIES_MAX


def test_fault_a_restore_during_a_merge_is_not_written_over() -> None:
    merge, session = merging("RESTORE")
    with pytest.raises(TableError) as refused:
        merge._commit("MERGE", 7)
    assert refused.value.state == "TABLE_RESTORED"
    assert len(session.versions) == 1
