"""Tests which commits of runs a Delta table has lost, with an example for each rule."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest

from sluice.console.lake.lacking import Lacking
from sluice.console.lake.tables import LakeTable
from sluice.spark_jobs.table_owner import FoundTable, Owner, TableRecord, behind_our_back
from sluice.spark_jobs.tables.lost_commits import lost_commits, newest_merged

OWNER = Owner(ledger_id="0123456789ab", destination="shop", table="shop.orders")


def of_run(version: int, *, kind: str = "changes", owner: Owner = OWNER) -> Mapping[str, Any]:
    record = {"sluice": 1, "kind": kind, "ledger": owner.ledger_id, "table": owner.table, "end": {"offset": version}}
    return {
        "version": version,
        "operation": "MERGE",
        "operationParameters": {"predicate": "id >= 1"},
        "userMetadata": json.dumps(record),
    }


def restore(version: int, back: int | None) -> Mapping[str, Any]:
    return {"version": version, "operation": "RESTORE", "operationParameters": {"version": back, "timestamp": None}}


def overwrite(version: int) -> Mapping[str, Any]:
    return {"version": version, "operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}


def merged(*versions: int) -> list[Mapping[str, Any]]:
    return [of_run(version) for version in versions]


@pytest.mark.parametrize(
    ("record", "history", "missing", "doubtful"),
    [
        (3, merged(1, 2, 3), [], False),
        (3, [*merged(1, 2, 3), restore(4, 1)], [2, 3], False),
        (3, [*merged(1, 2, 3), restore(4, 3)], [], False),
        (3, [*merged(1, 2, 3), restore(4, 1), restore(5, 3)], [], False),  # All commits are back.
        (3, [*merged(1, 2, 3), restore(4, 1), restore(5, 4)], [2, 3], False),
        (3, [*merged(1, 2, 3), restore(4, 1), restore(5, 2)], [3], False),
        (3, [*merged(1, 2, 3, 4), restore(5, 2)], [3, 4], False),  # A run was killed before it stored its record.
        (4, [*merged(1, 2, 3), restore(4, 1)], [], False),  # The table was accepted as it is.
        (3, [*merged(1, 2, 3), restore(4, None)], [1, 2, 3], True),
        (3, [*merged(1, 2, 3), {"version": 4, "operation": "CREATE OR REPLACE TABLE AS SELECT"}], [1, 2, 3], True),
        (3, [*merged(1), of_run(2, kind="maintenance"), *merged(3), restore(4, 1)], [3], False),
        (3, [*merged(1, 3), restore(4, 1)], [3], False),  # the log does not have version 2 any more
    ],
)
def test_identity_the_commits_that_a_table_lost_are_found_in_its_log(
    record: int, history: list[Mapping[str, Any]], missing: list[int], doubtful: bool
) -> None:
    newest = max(each["version"] for each in history)
    lost = lost_commits(OWNER, TableRecord(table_id="t", version=record), newest, history[::-1])
    assert [each.version for each in lost.commits] == missing
    assert lost.all_doubtful is doubtful
    assert (lost.by is not None) == bool(missing)


@pytest.mark.found
@pytest.mark.parametrize(
    ("history", "by"),
    [
        ([restore(4, 1), restore(5, 4)], 4),
        ([restore(4, 1), restore(5, 1)], 4),
        ([restore(4, 2), restore(5, 1)], 4),
        ([restore(4, 1), restore(5, 3), restore(6, 1)], 6),  # The commits were back in version 5.
        ([overwrite(4), overwrite(5)], 4),
        ([overwrite(4), restore(5, 4)], 4),
        ([restore(4, 1), overwrite(5)], 4),
        ([restore(4, 2), *merged(5), restore(6, 3), restore(7, 3)], 6),  # A run had begun version 5 before the RESTORE.
    ],
)
def test_identity_the_commit_is_named_that_removed_the_rows_and_not_a_later_one(
    history: list[Mapping[str, Any]], by: int
) -> None:
    """Defect 1111: if two commits of other programs rewrote a table, `lake accept` and the refusal named the newer one. They advised to
    restore the version before that commit, which lacks the rows too.
    """
    record, all_commits = TableRecord(table_id="t", version=3), [*merged(1, 2, 3), *history]
    lost = lost_commits(OWNER, record, all_commits[-1]["version"], all_commits[::-1])
    assert lost.by is not None
    assert lost.by.version == by
    found = FoundTable(exists=True, path="/lake", table_id="t", version=all_commits[-1]["version"], commits=all_commits)
    assert f"version {by} of the Delta table" in behind_our_back(OWNER, record, found)


def test_identity_commits_of_others_are_none_that_our_runs_lost() -> None:
    other = dataclasses.replace(OWNER, ledger_id="ffffffffffff")
    history = [of_run(1), of_run(2, owner=other), of_run(3), restore(4, 1)]
    lost = lost_commits(OWNER, TableRecord(table_id="t", version=3), 4, history)
    assert [each.version for each in lost.commits] == [3]
    newest = newest_merged(OWNER, history)
    assert newest is not None
    assert (newest.version, newest.end) == (3, {"offset": 3})
    assert newest_merged(other, [restore(1, 0)]) is None


class LakeWithLog:
    """A lake whose table has the given history, and whose last run left version 3."""

    def __init__(self, *history: Mapping[str, Any]) -> None:
        self._history = list(history)

    def left(self, _name: str) -> tuple[str, int]:
        return "t", 3

    def commits(self, _path: str) -> list[Mapping[str, Any]]:
        return self._history[::-1]

    def rows(self, _path: str) -> int:
        return 2


@pytest.mark.found
@pytest.mark.parametrize(
    ("parameters", "columns", "sentence"),
    [
        (
            {"columns": '["name"]'},
            {"id"},
            "Version 4 is a DROP COLUMNS by another writer. The table has 2 rows, without name: if the source has",
        ),
        (
            {"columns": '["name"]'},
            {"id", "name"},
            "The Delta table has 2 rows, and everything that the last run wrote.",
        ),
        (
            {"queryId": "1"},
            {"id"},
            "Version 4 is a DROP COLUMNS by another writer. The table has 2 rows, without columns that the commit does not name: if",
        ),
    ],
    ids=["gone", "back", "without names"],
)
def test_identity_a_dropped_column_is_part_of_what_a_table_lacks(
    parameters: dict[str, str], columns: set[str], sentence: str
) -> None:
    """Defect 1079: `lake accept` printed that the table has everything that the last run wrote."""
    dropped = {"version": 4, "operation": "DROP COLUMNS", "operationParameters": parameters}
    table = LakeTable(
        name=OWNER.table,
        path="/lake",
        table_id="t",
        version=4,
        owner=OWNER,
        epoch=1,
        delivery=1,
        columns=frozenset(columns),
    )
    lake: Any = LakeWithLog(*merged(1, 2, 3), dropped)
    assert Lacking(lake=lake, owner=OWNER, table=table, cursor="here").sentence().startswith(sentence)
