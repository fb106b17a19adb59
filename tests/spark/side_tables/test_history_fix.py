"""Tests the history after a repair or backfill has written a current-state table. The history is compared with this table, even if the run
is killed in between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.side_tables.history import History
from sluice.spark_jobs.side_tables.history_fix import HistoryFix, is_due
from sluice.spark_jobs.side_tables.side_table import SideTable, side_app_id_of
from sluice.spark_jobs.table_owner import Owner
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, changes, delete, insert, update
from tests.spark.staged import LEDGER_ID, TIME_US, Records, Segment

OWNER = Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME)


class DiesError(Exception):
    """The simulated kill of the run."""


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    found = LoggedTable(tmp_path)
    directory = found.stage(changes([insert(1, 16, "a"), insert(2, 16, "b")]))
    found.merge(directory)
    found.write(directory)
    return found


def repair(logged: LoggedTable, *segments: Segment) -> TableReport:
    """Runs a repair at the position 32, which merges `segments` into the current-state table and then corrects the history."""
    history_fix = HistoryFix(
        session=None,
        folder=logged.folder,
        owner=OWNER,
        target=logged.target,
        key=("id",),
        position=(32, TIME_US),
        record="{}",
        storage_options={},
        records=Records(),
        fence=BY_HAND,
    )
    return history_fix.do(lambda: logged.merge(logged.stage(*segments)))


def due(logged: LoggedTable) -> bool:
    app_id = side_app_id_of("shop", LEDGER_ID, "history", NAME)
    return is_due(SideTable(NAME, logged.target.history, app_id, {}, fence=BY_HAND).open())


def test_what_a_repair_changed_is_a_version_of_its_history(logged: LoggedTable) -> None:
    repair(logged, changes([update(1, 32, "A"), delete(2, 32), insert(3, 32, "c")]))
    assert logged.history() == [
        (1, "a", 16, 32, False),
        (1, "A", 32, None, True),
        (2, "b", 16, 32, False),
        (3, "c", 32, None, True),
    ]
    assert not due(logged)


@pytest.mark.parametrize("moment", ["before the current_state", "before the history", "before it is settled"])
def test_a_repair_that_dies_leaves_a_history_that_the_next_batch_corrects_history(
    logged: LoggedTable, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with monkeypatch.context() as patch:
        take: Callable[..., bool] = History.take

        def dies(*given: Any, **options: Any) -> bool:
            if moment == "before it is settled":
                take(*given, **options)
            raise DiesError

        patch.setattr(History, "take", dies)
        if moment == "before the current_state":
            patch.setattr(logged, "merge", dies)
        with pytest.raises(DiesError):
            repair(logged, changes([update(1, 32, "A")]))
    assert due(logged)
    directory = logged.stage(changes([update(2, 48, "B")]))
    logged.merge(directory)
    for _ in range(2):
        logged.write(directory)
    assert not due(logged)
    of_repair = (
        [(1, "a", 16, None, True)]
        if moment == "before the current_state"
        else [(1, "a", 16, 32, False), (1, "A", 32, None, True)]
    )
    assert logged.history() == [*of_repair, (2, "b", 16, 48, False), (2, "B", 48, None, True)]
