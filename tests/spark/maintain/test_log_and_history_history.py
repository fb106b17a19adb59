"""Tests that change logs and histories are maintained like current-state tables, with deltalake alone."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa

from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain.rule import SMALL_FILES_MAX
from sluice.spark_jobs.maintain.side_tables import MaintainedSideTable, compact, planned, vacuum
from sluice.spark_jobs.maintain.tables import MaintainedTable
from sluice.spark_jobs.table_owner import Owner
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, changes, insert
from tests.spark.staged import LEDGER_ID


def test_a_log_and_a_history_of_many_small_files_are_joined_and_vacuumed_history(tmp_path: Path) -> None:
    logged = LoggedTable(tmp_path)
    files = SMALL_FILES_MAX + 2
    for index in range(1, files + 1):
        logged.write(logged.stage(changes([insert(index, 16 * index)])))
    current_state = MaintainedTable(
        owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME),
        path=logged.target.path,
        run="r",
        fence=BY_HAND,
    )
    for kind, path in (("log", logged.target.change_log), ("history", logged.target.history)):
        given = MaintainedSideTable(current_state=current_state, path=path, kind=kind)
        rows = count(path)
        plan = planned(given)
        assert plan is not None
        made = compact(given, plan)
        assert (made.name, made.act, made.before.files, made.after.files) == (f"{NAME}__{kind}", "compact", files, 1)
        gone = vacuum(given, 0)
        assert gone is not None
        assert gone.removed_files >= files
        assert len(list(Path(path).glob("*.parquet"))) == 1
        assert count(path) == rows == files
    assert planned(MaintainedSideTable(current_state=current_state, path=str(tmp_path / "nothing"), kind="log")) is None
    logged.write(logged.stage(changes([insert(1000, 16 * files + 16)])))
    assert len(logged.history()) == files + 1


def count(path: str) -> int:
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path)).execute("SELECT 1 FROM t")
    return pa.table(found.read_all()).num_rows
