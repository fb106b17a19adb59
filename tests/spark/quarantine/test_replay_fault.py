"""Tests that a value leaves the quarantine only after its row has it on disk: each commit of a replay is synced and read back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.quarantine import replay
from sluice.spark_jobs.quarantine.replay import ReplayedTable, RowValues, put_back
from sluice.spark_jobs.session import LakeSession, open_sessions
from sluice.spark_jobs.table_owner import NO_RECORDS, Owner, TableRecord
from tests.durability.disk import Disk
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, LEDGER_ID, UPDATE_AFTER, Changes, Image, Records, Schema

pytestmark = pytest.mark.spark

NAME = "shop.notes"
NOTES = Schema({"id": "bigint", "note": "string"}, ("id",))


@pytest.fixture
def session(lake: Lake) -> Iterator[LakeSession]:
    """Opens a session, and creates a table with a row whose note could not be decoded."""
    lake.way = "spark"
    lake.merge({NAME: [Changes(NOTES, [Image(INSERT, 16, {"id": key, "note": None}) for key in (1, 2)])]})
    with open_sessions(lake.spark, 1, BY_HAND) as (opened,):
        yield opened


def replayed(lake: Lake, session: LakeSession, **others: Any) -> ReplayedTable:
    owner = others.pop("owner", Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME))
    given = {"records": NO_RECORDS, "storage_options": {}, "target": lake.target(NAME), **others}
    return ReplayedTable(session=session, owner=owner, **given)


def values(folder: Path, note: str = "ä") -> RowValues:
    """Returns the values of a replay. There is one value: the note of the row with id 1."""
    table = {"number": pa.array([0]), "order_key": pa.array([16]), "value": [note], "named_0": ["1"]}
    pq.write_table(pa.table(table), folder / "values.parquet")
    return RowValues(file=folder / "values.parquet", type_name="string", names=["id"], keyed=True)


def lost(lake: Lake, disk: Disk) -> list[str]:
    """Returns what a loss of power would remove from the table."""
    files = [each for each in Path(lake.path(NAME)).rglob("*") if each.is_file()]
    return [why for each in files for why in disk.loses(each)]


def test_fault_a_value_is_on_disk_when_it_was_put_back(
    lake: Lake, session: LakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(lake.folder, monkeypatch)
    assert put_back(replayed(lake, session), "note", values(lake.folder)) == {0}
    assert lake.rows(NAME, "id", "note") == [(1, "ä"), (2, None)]
    assert lost(lake, disk) == []


def test_fault_a_commit_of_a_replay_that_was_killed_is_synced_by_the_next_one(
    lake: Lake, session: LakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, log = Records(), lake.log(NAME)
    records.keep(NAME, TableRecord(table_id=str(log.metadata().id), version=log.version()))
    disk = Disk(lake.folder, monkeypatch)
    with monkeypatch.context() as killed:
        killed.setattr(replay, "sync_commits", lambda *_, **__: 0)
        put_back(replayed(lake, session), "note", values(lake.folder))
    commits = [Path(lake.path(NAME)) / "_delta_log" / f"{log.version() + number:020d}.json" for number in (1, 2)]
    assert disk.loses(commits[0])
    assert put_back(replayed(lake, session, records=records), "note", values(lake.folder)) == {0}
    left = [why for each in commits for why in disk.loses(each)]
    assert not [why for why in left if "content" in why or why.endswith("in _delta_log")]


def test_fault_a_commit_of_a_replay_that_another_commit_replaced_is_an_error(
    lake: Lake, session: LakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, entry = (
        LakeSession.commit,
        Path(lake.path(NAME)) / "_delta_log" / f"{lake.log(NAME).version() + 1:020d}.json",
    )

    def written_over(*given: Any) -> None:
        commit(*given)
        entry.write_text(json.dumps({"commitInfo": {"operation": "OPTIMIZE"}}))

    monkeypatch.setattr(LakeSession, "commit", written_over)
    with pytest.raises(TableError, match="has a commit of another writer instead of the commit of this run"):
        put_back(replayed(lake, session), "note", values(lake.folder))


def test_fault_a_table_of_another_ledger_is_not_written(lake: Lake, session: LakeSession) -> None:
    """The order keys of its rows are from another stream."""
    other = Owner(ledger_id="ba9876543210", destination="shop", table=NAME)
    with pytest.raises(TableError, match="belongs to the destination shop"):
        put_back(replayed(lake, session, owner=other), "note", values(lake.folder))
    assert lake.rows(NAME, "id", "note") == [(1, None), (2, None)]


@pytest.mark.found
def test_a_value_is_put_into_no_row_whose_key_column_was_renamed(lake: Lake) -> None:
    """Defect 1057: a key column that the Delta table did not have any more was left out of the condition. So the value of a row that had
    changed since then was written into another row of its transaction. If the value's own column was gone, a traceback was printed.
    """
    lake.way, renamed = "spark", Schema({"uid": "bigint", "note": "string"}, ("uid",))
    lake.merge({NAME: [Changes(renamed, [Image(INSERT, 16, {"uid": key, "note": None}) for key in (1, 2)])]})
    lake.merge({NAME: [Changes(renamed, [Image(UPDATE_AFTER, 32, {"uid": 1, "note": "new"})])]})
    with open_sessions(lake.spark, 1, BY_HAND) as (session,):
        with pytest.raises(TableError, match="has no column id, because"):
            put_back(replayed(lake, session), "note", values(lake.folder))
        given = dataclasses.replace(values(lake.folder), names=["uid"])
        with pytest.raises(TableError, match="has no column text, because"):
            put_back(replayed(lake, session), "text", given)
    assert lake.rows(NAME, "uid", "note") == [(1, "new"), (2, None)]
