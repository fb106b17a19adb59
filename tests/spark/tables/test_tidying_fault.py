"""Tests a user's own OPTIMIZE and VACUUM between and during merges: one of the two conflicting commits is repeated, and no row is lost."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.spark_jobs import session as settings
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain import tables
from sluice.spark_jobs.maintain.rule import MaintenanceAct
from sluice.spark_jobs.maintain.tables import VACUUM_SETTINGS, MaintainedTable, optimize
from sluice.spark_jobs.session import LakeSession, open_sessions
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.table_owner import Owner, TableRecord
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.tables.lake_look import LakeLook
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, UPDATE_AFTER, Changes, Image, Schema

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
NAME = "shop.orders"
ROUNDS = 2


def changes(operation: int, keys: range, start: int) -> Changes:
    return Changes(ORDERS, [Image(operation, start + key, {"id": key, "name": f"at {start}"}) for key in keys])


class User:
    """Imitates a user who compacts the table whenever a merge executes MERGE. `conflicts` counts the conflicts in which the user's commit
    failed.
    """

    def __init__(self, session: LakeSession, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._session, self._table = session, delta_path(path)
        self.conflicts = 0
        # By default, a VACUUM lists files with ten thousand tasks. Maintenance uses the same settings.
        session.configure({**settings.SMALL_SETTINGS, **VACUUM_SETTINGS})
        whole = LakeSession.commit

        def commit(merging: LakeSession, name: str, statement: str) -> Any:
            optimizing = threading.Thread(target=self.optimize)
            if merging is not session and statement.startswith("MERGE"):
                optimizing.start()
            try:
                return whole(merging, name, statement)
            finally:
                if optimizing.ident is not None:
                    optimizing.join()

        monkeypatch.setattr(LakeSession, "commit", commit)

    def optimize(self) -> None:
        try:
            self._session.spark.sql(f"OPTIMIZE {self._table}")
        except Exception as error:
            if "concurrent" not in str(error).lower():
                raise
            self.conflicts += 1

    def vacuum(self) -> None:
        self._session.spark.sql(f"VACUUM {self._table} RETAIN 0 HOURS")


@pytest.fixture
def user(lake: Lake, monkeypatch: pytest.MonkeyPatch, marks_rows: None) -> Iterator[User]:
    """Provides a user with a separate session. Merges write deletion vectors, so that OPTIMIZE has files to rewrite."""
    of_the_user = dataclasses.replace(lake.spark, sessions_file=None)  # Without a file, no run ends it.
    with open_sessions(of_the_user, 1) as (session,):
        yield User(session, lake.target(NAME).path, monkeypatch)


def test_fault_a_user_who_optimizes_and_vacuums_costs_no_rows_and_is_no_trouble(lake: Lake, user: User) -> None:
    lake.merge({NAME: [changes(INSERT, range(1, 40), 1)]})
    left = TableRecord(table_id=str(lake.log(NAME).metadata().id), version=lake.log(NAME).version())
    expected = dict.fromkeys(range(1, 40), 1)
    for number in range(1, ROUNDS + 1):
        lake.merge({NAME: [changes(UPDATE_AFTER, range(number, 10 * number), 100 * number)]})
        expected |= dict.fromkeys(range(number, 10 * number), 100 * number)
    user.vacuum()
    lake.merge({NAME: [changes(UPDATE_AFTER, range(30, 33), 900)]})
    expected |= dict.fromkeys(range(30, 33), 900)
    assert lake.rows(NAME, "id", "name") == sorted((key, f"at {start}") for key, start in expected.items())
    owner = Owner(ledger_id="0123456789ab", destination="shop", table=NAME)
    assert "OPTIMIZE" in {commit["operation"] for commit in lake.log(NAME).history()} or user.conflicts
    assert LakeLook({}).trouble(owner, lake.target(NAME).path, left) == ""


@pytest.mark.found
def test_fault_an_optimize_after_that_of_a_user_has_nothing_to_do_and_loses_no_commit(
    lake: Lake, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 66: if another program rewrote the files after maintenance had decided to rewrite them, maintenance reported a lost commit."""
    for number in range(3):
        lake.merge({NAME: [changes(INSERT, range(10 * number, 10 * number + 5), 100 * number)]})
    owner = Owner(ledger_id="0123456789ab", destination="shop", table=NAME)
    table = MaintainedTable(owner=owner, path=lake.target(NAME).path, fence=BY_HAND)
    opened = tables._ours

    def opened_before_the_user(table: MaintainedTable) -> DeltaTable:
        found = opened(table)
        user.optimize()
        return found

    monkeypatch.setattr(tables, "_ours", opened_before_the_user)
    done = optimize(lake.spark, table, wanted=True)
    assert done is not None
    assert (done.act, done.before.files > 1) == (MaintenanceAct.NOTHING, True)
    assert done.reason.endswith("files of the table are small, but OPTIMIZE found no file to rewrite")
    assert (done.after.files, done.version) == (1, lake.log(NAME).version())
