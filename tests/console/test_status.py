"""Tests `status` as an operator uses it: everything is well, or something is wrong, with exit codes and JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation, OutstandingBatch, StoppedTable, TableVersion
from sluice.cdc_engine.ha.file_lease import FileLease
from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.stored_ledger import StoredLedger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.main import app
from sluice.console.stack.processes import ProcessFile, part_names
from sluice.console.status.report import DestinationStatus, StatusReport, find_problems, read_destination, well
from sluice.console.toolchain.ports import free_port
from tests.console.conftest import RUNNER, Installation
from tests.fix_ledgers import FileLedger
from tests.waiting import wait_for


def running_engine(directory: Path, **changes: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    at = Position(epoch=1, file="binlog.000003", offset=99)
    values = {
        "state": "RUNNING",
        "position": at,
        "lag_seconds": 1.5,
        "updated_at_us": time.time_ns() // 1000,
        **changes,
    }
    write_status(directory / "status.json", EngineStatus(**values))


def everything_runs(installation: Installation) -> ProcessFile:
    """Writes files by which each part of a stack has a running process. This process is the process of the test."""
    (installation.data / "dagster").mkdir(parents=True, exist_ok=True)
    # Without this setting, `status` could report that the SQLite files of Dagster's storage are missing.
    (installation.data / "dagster" / "dagster.yaml").write_text("storage: {postgres: {}}")
    file = ProcessFile(installation.data / "processes.json")
    for name in part_names(load_config()):
        file.add(name, os.getpid())
    return file


def test_status_of_nothing_is_wrong_and_says_what_to_do(installation: Installation) -> None:
    installation.destination(1)
    answer = RUNNER.invoke(app, ["status", "--json"])
    report = json.loads(answer.stdout)
    assert answer.exit_code == 1
    assert not report["ok"]
    assert "sluice up" in report["problems"][0]


def test_status_of_a_running_engine_is_well(installation: Installation) -> None:
    directory = installation.destination(1)
    everything_runs(installation)
    running_engine(directory)
    cursor = Position(epoch=1, file="binlog.000003", offset=50)
    end = Position(epoch=1, file="binlog.000003", offset=99)
    batch = OutstandingBatch(
        ledger_id="0123456789ab",
        batch_id=4,
        delivery=7,
        start=cursor,
        end=end,
        path="staging/x",
        rows=10,
        bytes=99,
        tables=("shop.orders",),
    )
    FileLedger(directory).update(
        lambda _: Ledger(cursor=cursor, outstanding=(batch,), next_batch_id=5, next_delivery=8)
    )
    answer = RUNNER.invoke(app, ["status", "--json"])
    report = json.loads(answer.stdout)
    assert answer.exit_code == 0, answer.stdout
    (shop,) = report["destinations"]
    assert (shop["state"], shop["cursor"], shop["position"]) == ("RUNNING", "binlog.000003:50@1", "binlog.000003:99@1")
    assert shop["outstanding"][0]["tables"] == ["shop.orders"]
    assert report["processes"][0]["rss_mb"] > 1
    shown = RUNNER.invoke(app, ["status"])
    assert "#4 (10 rows)" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "no problems"


def test_status_misses_a_part_of_dagster_only_if_another_one_was_started(installation: Installation) -> None:
    running_engine(installation.destination(1))
    (installation.conf / "sluice.yaml").write_text("engine: {kind: remote}\n")
    file = ProcessFile(installation.data / "processes.json")
    for name in ("engine", "spark"):  # `sluice up --without-dagster`
        file.add(name, os.getpid())
    assert RUNNER.invoke(app, ["status"]).exit_code == 0
    file.add("webserver", os.getpid())
    assert "the daemon was never started" in " ".join(RUNNER.invoke(app, ["status"]).stdout.split())


def test_status_says_why_a_batch_waits_for_its_next_try(installation: Installation) -> None:
    sentence = "waiting 20 s before the next attempt (3 runs in a row failed): shop.items: a type differs"
    running_engine(installation.destination(1), waiting=sentence)
    assert sentence in " ".join(RUNNER.invoke(app, ["status"]).stdout.split())


def test_status_names_a_dead_process_a_silent_engine_and_a_stopped_table(installation: Installation) -> None:
    directory = installation.destination(1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ProcessFile(installation.data / "processes.json").add("daemon", child.pid)
    child.kill()
    child.wait()
    stopped = StoppedTable(
        database="shop",
        table="orders",
        state=TableState.DDL_UNSUPPORTED,
        reason="it was renamed",
        position=Position(epoch=1, file="b.1", offset=4),
    )
    running_engine(directory, stopped_tables=(stopped,), updated_at_us=time.time_ns() // 1000 - 60_000_000)
    lease = FileLease(directory)
    assert lease.try_acquire()
    try:
        answer = RUNNER.invoke(app, ["status"])
    finally:
        lease.release()
    assert answer.exit_code == 1
    for words in ("the daemon", "STALE", "DDL_UNSUPPORTED: it was renamed"):
        assert words in answer.stdout, answer.stdout
    assert re.search(r"its last status [6-9]\d s ago", answer.stdout), answer.stdout
    assert "STOPPED" in RUNNER.invoke(app, ["status"]).stdout


def test_fault_status_names_a_process_that_was_stopped(installation: Installation) -> None:
    """Spark or a run gets SIGSTOP. It is alive but answers nobody, so everything that waits for it waits forever."""
    running_engine(installation.destination(1))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        everything_runs(installation).add("spark", child.pid)
        assert RUNNER.invoke(app, ["status"]).exit_code == 0
        child.send_signal(signal.SIGSTOP)
        wait_for("it is stopped", lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
        answer = RUNNER.invoke(app, ["status"])
    finally:
        child.kill()
        child.wait()
    assert answer.exit_code == 1
    assert f"`kill -CONT {child.pid}`" in " ".join(answer.stdout.split())
    assert "no problems" not in answer.stdout


def test_fault_a_part_that_was_never_started_is_missed(installation: Installation) -> None:
    """`sluice up` was killed after it had started some parts."""
    running_engine(installation.destination(1))
    file = everything_runs(installation)
    file.remove(["webserver", "spark"])
    answer = RUNNER.invoke(app, ["status", "--json"])
    assert answer.exit_code == 1
    said = json.loads(answer.stdout)["problems"]
    assert [
        name for name in ("webserver", "spark", "daemon") if any(f"the {name} was never" in each for each in said)
    ] == [
        "webserver",
        "spark",
    ]


def stored_before(directory: Path, seconds: float) -> None:
    """Makes the records of snapshots older."""
    store = record_store(directory)
    for name, text in store.all("snapshots").items():
        store.put(name, json.dumps({**json.loads(text), "kept_at": time.time() - seconds}))


def test_fault_a_snapshot_that_no_run_reads_is_a_problem(installation: Installation) -> None:
    """The snapshot's sensor is switched off, so the table's changes are buffered and its rows are never read."""
    directory = installation.destination(1)
    running_engine(directory)
    everything_runs(installation)
    records = SnapshotRecords(directory)
    records.begin(SnapshotRecord(snapshot_id="0123456789ab", database="shop", table="orders"))
    assert RUNNER.invoke(app, ["status"]).exit_code == 0
    stored_before(directory, 1200)
    answer = RUNNER.invoke(app, ["status"])
    assert answer.exit_code == 1
    assert "rows of shop.orders for 20 min" in " ".join(answer.stdout.split())
    reader = records.reading()
    assert reader.try_acquire()
    assert RUNNER.invoke(app, ["status"]).exit_code == 0, "a run is at it"
    reader.release()
    records.update("shop.orders", lambda now: dataclasses.replace(now, paused=True))
    stored_before(directory, 1200)
    assert RUNNER.invoke(app, ["status"]).exit_code == 0, "an operator paused it"


def test_fault_a_clock_that_was_set_back_does_not_keep_a_dead_engine_alive(installation: Installation) -> None:
    running_engine(installation.destination(1), updated_at_us=time.time_ns() // 1000 + 3_600_000_000)
    everything_runs(installation)
    answer = RUNNER.invoke(app, ["status", "--json"])
    assert answer.exit_code == 1
    (shop,) = json.loads(answer.stdout)["destinations"]
    assert shop["state"] == "STOPPED"
    assert "clock was set back" in shop["reason"]


@pytest.mark.parametrize(("age_seconds", "hours"), [(0, 10.0), (3600, 9.0), (36_001, 0.0)], ids=str)
def test_failover_the_retention_left_counts_on_while_no_engine_runs(
    installation: Installation, age_seconds: int, hours: float
) -> None:
    updated = (time.time_ns() - age_seconds * 10**9) // 1000
    running_engine(installation.destination(1), updated_at_us=updated, retention_left_hours=10.0)
    answer = RUNNER.invoke(app, ["status", "--json"])
    assert json.loads(answer.stdout)["destinations"][0]["retention_left_hours"] == pytest.approx(hours, abs=0.02)


def test_every_state_but_the_good_ones_is_a_problem() -> None:
    process = {"name": "code server", "pid": 1, "alive": True}
    for state in ("RUNNING", "STARTING", "CONNECTING"):
        assert find_problems([process], [DestinationStatus(name="shop", state=state)]) == []
    lost = DestinationStatus(name="shop", state="POSITION_LOST", reason="purged")
    assert find_problems([process], [lost]) == ["shop is POSITION_LOST: purged"]
    held_back = DestinationStatus(name="shop", state="RUNNING", waiting="waiting 20 s before the next attempt")
    assert find_problems([process], [held_back]) == ["shop is waiting 20 s before the next attempt"]


def test_fault_status_is_not_well_while_something_is_not(installation: Installation) -> None:
    """The engine and its processes run, but nothing is merged."""
    directory = installation.destination(1)
    everything_runs(installation)
    running_engine(directory, ticked_at_us=time.time_ns() // 1000)
    assert RUNNER.invoke(app, ["status"]).exit_code == 0
    running_engine(directory, troubles=("no tick of the sensor shop_engine for 95 s: ./sluice up",))
    answer = RUNNER.invoke(app, ["status"])
    assert answer.exit_code == 1
    assert "no tick of the sensor shop_engine for 95 s" in answer.stdout
    assert "no problems" not in answer.stdout


@pytest.mark.found
def test_status_looks_for_the_daemon_when_no_tick_comes(installation: Installation) -> None:
    """Defect 29: "Dagster's daemon does not run" was reported although it ran."""
    everything_runs(installation)
    (installation.data / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}")
    file = ProcessFile(installation.data / "processes.json")
    file.save([each if each.name != "daemon" else dataclasses.replace(each, pid=1) for each in file.load()])
    directory = installation.destination(1)
    running_engine(directory, troubles=("no tick of the sensor shop_engine has reached the engine for 95 s",))
    assert "Dagster's daemon has written no heartbeat" in RUNNER.invoke(app, ["status"]).stdout
    running_engine(directory, troubles=("the ticks of the sensor shop_engine fail",))
    assert "heartbeat" not in RUNNER.invoke(app, ["status"]).stdout


@pytest.mark.found
def test_for_an_engine_that_has_not_started_no_restart_is_advised(installation: Installation) -> None:
    """Defect 29: "no engine has run yet; `sluice up` starts it" was shown after `sluice up`."""
    installation.destination(1)
    everything_runs(installation)
    (shop,) = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)["destinations"]
    assert "sluice up" not in shop["reason"]
    assert f"read the logs in {installation.data / 'logs'}" in shop["reason"]


def test_fault_what_the_sensor_said_has_its_age(installation: Installation) -> None:
    directory = installation.destination(1)
    minutes_ago = time.time_ns() // 1000 - 130_000_000
    running_engine(directory, waiting="waiting 10 s before the next attempt", ticked_at_us=minutes_ago)
    report = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)
    assert any("waiting 10 s before the next attempt (reported 13" in problem for problem in report["problems"])
    assert report["destinations"][0]["tick_age_seconds"] >= 130
    assert "13" in RUNNER.invoke(app, ["status"]).stdout


def test_ha_status_shows_the_ledger_that_other_hosts_store(tmp_path: Path) -> None:
    location = LedgerLocation(
        destination="shop", directory=tmp_path / "shop", kind="sql", url=f"sqlite:///{tmp_path}/meta.db"
    )
    end = Position(epoch=3, file="binlog.000003", offset=99)
    StoredLedger(record_store(location), "shop").update(lambda ledger: ledger.set_cursor(end))
    status = read_destination(DestinationDir.of(location), "shop", time.time())
    assert status.cursor == "binlog.000003:99@3"


def test_ha_status_says_that_the_store_of_the_ledger_does_not_answer(tmp_path: Path) -> None:
    url = f"postgresql://sluice:hidden@127.0.0.1:{free_port()}/meta"
    location = LedgerLocation(destination="shop", directory=tmp_path / "shop", kind="sql", url=url)
    status = read_destination(DestinationDir.of(location), "shop", time.time())
    (problem,) = (each for each in find_problems([{"name": "x", "alive": True, "pid": 1}], [status]) if "meta" in each)
    assert "while this lasts, the cursor" in problem
    assert "hidden" not in problem + repr(location)


@pytest.mark.found
def test_status_counts_and_shows_problems_first(installation: Installation) -> None:
    """Test for defect 28: `status` shows problems first, and only the numbers of tables and foreign keys. `--verbose` names the tables and
    foreign keys, and JSON has all of them.
    """
    directory = installation.destination(1)
    running_engine(directory)
    tables = [TableVersion(database="shop", table=f"log{number}", columns=()) for number in range(9)]
    write_tables(directory, tables)
    brief = RUNNER.invoke(app, ["status"]).stdout
    assert "9 table(s) of shop have no primary key (shop.log0, shop.log1, shop.log2 and 6 more)" in brief
    assert brief.index("\u2717 no process of Sluice runs") < brief.index("destinations")
    assert "shop.log8" in RUNNER.invoke(app, ["status", "--verbose"]).stdout
    (shop,) = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)["destinations"]
    assert len(shop["keyless"]) == 9


@pytest.mark.found
def test_the_last_line_of_a_status_without_problems_is_one_sentence() -> None:
    """Defect 63: `status` said "all is well" or "no problems", and named no warnings while a re-snapshot ran."""
    shop = DestinationStatus(name="shop", state="RUNNING", snapshots=[{"lake_is_older": "why"}])
    last = [well(StatusReport([], each, [], warnings)) for each in ([], [shop]) for warnings in ([], ["a", "b"])]
    older = "1 tables in the lake are older than 'acked up to' until their snapshots are published"
    assert [str(each) for each in last] == [
        "no problems",
        "no problems; 2 warning(s)",
        f"no problems; {older}",
        f"no problems; 2 warning(s); {older}",
    ]
    assert [each.style for each in last] == ["green", "yellow", "yellow", "yellow"]
