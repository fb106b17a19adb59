"""Tests maintenance while an engine runs: rows, consistent snapshots and the kind of the next merge stay the same."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from sluice.cdc_engine import destination_files
from sluice.consistent_snapshot.find import (
    SCHEMA,
    ConsistentSnapshotError,
    consistent_snapshots_path,
    read_consistent_snapshot,
)
from sluice.console.lake.history import captured_table, history_of
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.run.maintain_run import Looked, MaintainRequest, run_maintenance
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain import rule
from sluice.spark_jobs.maintain.tables import newest_snapshot_age_hours, prune_consistent_snapshots
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline, killed_at


def maintained(pipeline: Pipeline, **request: Any) -> Looked:
    ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
    return run_maintenance(
        ports, pipeline.config, MaintainRequest(destination="shop", **request), lambda _: None, run="by hand"
    )


def files(path: str) -> set[str]:
    """Returns the data files in a table's folder, whether they belong to the table or not."""
    return {each.name for each in Path(path).glob("*.parquet")}


@pytest.mark.servers
@pytest.mark.spark
def test_small_files_are_joined_and_old_ones_removed_and_consistent_snapshots_can_be_read(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    monkeypatch.setenv("SLUICE_CONF", str(pipeline.captured.conf))
    lake, numbers = pipeline.config.lake, pipeline.name
    with running(pipeline.captured) as engine:
        for number in range(4):
            pipeline.captured.insert([number])
            pipeline.merge(engine)
        before = maintained(pipeline)
        assert [each.act for each in before.done] == ["nothing"], "it does not pay"
        old = read_consistent_snapshot(lake, "shop")
        monkeypatch.setattr(rule, "SMALL_FILES_MAX", 1)
        (made,) = maintained(pipeline).done
        assert (made.act, made.after.files) == ("compact", 1)
        assert made.before.files > 1
        rows = pipeline.rows()
        assert rows == dict.fromkeys(range(4), "")
        pipeline.change(f"DELETE FROM {numbers} WHERE n = 1", f"UPDATE {numbers} SET filler = 'new' WHERE n = 2")
        pipeline.merge(engine)
        assert pipeline.rows() == {0: "", 2: "new", 3: ""}
        new = read_consistent_snapshot(lake, "shop")
        assert new.tables[numbers].version > old.tables[numbers].version
        there = files(pipeline.path)
        kept = maintained(pipeline, optimize=False, vacuum=True).done[0]
        assert (kept.removed_files, files(pipeline.path)) == (0, there), "within the days that conf/ says"
        past = deltalake.DeltaTable(pipeline.path, version=old.tables[numbers].version)
        assert _count(past) == 8, "each merge writes a row of its own too"
        hour = time.time() - 2 * 3600 - 60
        for each in Path(pipeline.path).glob("*.parquet"):
            os.utime(each, (hour, hour))
        looked = maintained(pipeline, optimize=False, vacuum=True, retention_hours=0.0)
        assert (looked.hours, looked.failed) == (2.0, {}), "for the newest consistent snapshot"
        assert pipeline.rows() == {0: "", 2: "new", 3: ""}
        version = read_consistent_snapshot(lake, "shop").tables[numbers].version
        assert _count(deltalake.DeltaTable(pipeline.path, version=version)) == 8
        pipeline.captured.insert([7])
        pipeline.merge(engine)
        assert pipeline.rows() == {0: "", 2: "new", 3: "", 7: ""}
        assert not engine.status().stopped_tables
        answer = CliRunner().invoke(app, ["maintain", "shop", "--optimize", "--json"])
        assert answer.exit_code == 0, answer.exception
        assert {each["act"] for each in json.loads(answer.stdout)["tables"]} <= {"compact", "nothing"}
    reported = [each for each in history_of(captured_table(pipeline.config, numbers)) if each.kind == "maintenance"]
    assert {each.run for each in reported} == {"by hand", ""}
    assert len({each.version for each in reported}) == len(reported) > 1, "each version was reported once"
    assert not any(each.streamed for each in reported)


def _count(log: deltalake.DeltaTable) -> int:
    """Rows, read from its files."""
    return len(pa.table(log.scan(columns=["n"])))


def test_consistent_snapshots_that_name_what_is_gone_go_before_it_and_the_newest_stays(tmp_path: Path) -> None:
    path = consistent_snapshots_path(str(tmp_path), "shop")
    assert newest_snapshot_age_hours(path) is None
    assert prune_consistent_snapshots(path, 1.0, BY_HAND) == 0
    now = dt.datetime.now(dt.UTC)
    for key, hours in ((1, 30.0), (2, 20.0), (3, 10.0)):
        _lay(path, key, now - dt.timedelta(hours=hours))
    assert newest_snapshot_age_hours(path) == pytest.approx(10.0, abs=0.1)
    kept = rule.hours_kept(5.0, newest_snapshot_age_hours(path))
    assert prune_consistent_snapshots(path, kept, BY_HAND) == 2
    assert read_consistent_snapshot(str(tmp_path), "shop").order_key == 3
    with pytest.raises(ConsistentSnapshotError, match="as old as"):
        read_consistent_snapshot(str(tmp_path), "shop", at=now - dt.timedelta(hours=15))
    assert len(deltalake.DeltaTable(path).file_uris()) == 1
    assert prune_consistent_snapshots(path, kept, BY_HAND) == 0


def _lay(path: str, key: int, published_at: dt.datetime) -> None:
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names, "") | {"epoch": 1, "offset": key, "delivery": 1, "tables": "{}"}
    row |= {"order_key": key, "commit_time": published_at, "published_at": published_at}
    deltalake.write_deltalake(path, pa.Table.from_pylist([row], schema=SCHEMA), mode="append")


@pytest.mark.servers
@pytest.mark.spark
def test_maintenance_that_is_killed_anywhere_leaves_tables_right_and_is_done_again(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    gates, other = tmp_path / "gates", f"{pipeline.captured.database}.others"
    gates.mkdir()
    environment = {**os.environ, "SLUICE_CONF": str(pipeline.captured.conf), failpoints.VARIABLE: str(gates)}
    command = [
        sys.executable,
        "-m",
        "sluice.console.main",
        "maintain",
        "shop",
        "--optimize",
        "--vacuum",
        "--retention-hours",
        "0",
    ]
    with running(pipeline.captured) as engine:
        pipeline.change(f"CREATE TABLE {other} (n INT PRIMARY KEY, filler TEXT)")
        number = 0
        for point in (failpoints.BEFORE_MAINTENANCE, failpoints.BETWEEN_MAINTAINED, failpoints.AFTER_MAINTENANCE):
            for _ in range(2):
                number += 1
                pipeline.captured.insert([number])
                pipeline.change(f"INSERT INTO {other} VALUES ({number}, '')")
                pipeline.merge(engine)
            (gates / point).touch()
            # Each command repeats the work of the command that was killed before it.
            killed_at(gates / point, command, environment)
            number += 1
            pipeline.captured.insert([number])
            pipeline.merge(engine)
            assert sorted(pipeline.rows()) == list(range(1, number + 1)), point
        again = subprocess.run([*command, "--json"], env=environment, capture_output=True, timeout=180, check=False)
        assert again.returncode == 0, again.stderr.decode()
        assert not json.loads(again.stdout)["failed"]
        assert sorted(pipeline.rows()) == list(range(1, number + 1))
        assert sorted(pipeline.rows(pipeline.config.table_path("shop", *other.split(".")))) == [1, 2, 4, 5, 7, 8]
        assert read_consistent_snapshot(pipeline.config.lake, "shop").tables[pipeline.name].version >= 0
        assert not engine.status().stopped_tables
