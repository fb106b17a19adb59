"""Tests Spark sessions: Spark that is down or killed, statements that a killed run left, writes that Delta refuses to repeat, large
merges, and a session inside the process.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import deltalake
import pytest
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from sluice.batch_manifest.values import ChangesSegment
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs import session
from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.merging import fold, merge_sql
from sluice.spark_jobs.session import LakeSession, SparkSettings, open_sessions
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, LEDGER_ID, UPDATE_AFTER, Changes, Image, Schema

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
ROWS = [Image(INSERT, 1 + key, {"id": key, "name": "x"}) for key in range(5)]
CHANGED = [Image(UPDATE_AFTER, 11, {"id": 1, "name": "y"}), Image(DELETE, 12, {"id": 2, "name": "x"})]
END_SECONDS_MAX = 60.0


def test_spark_down_is_one_sentence_at_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path, SparkSettings(remote=f"sc://127.0.0.1:{free_port()}"))
    started = time.monotonic()
    with pytest.raises(
        SparkUnavailableError, match=r"^no Spark Connect server answers at 127\.0\.0\.1:\d+ .*`sluice up`"
    ) as caught:
        lake.merge({"shop.orders": [Changes(ORDERS, ROWS)]})
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < session.CONNECT_SECONDS_MAX


@pytest.mark.spark
@pytest.mark.timeout(600)  # The test needs two cold starts of Spark.
def test_spark_killed_during_a_merge_is_one_sentence_and_the_batch_continues_afterwards(tmp_path: Path) -> None:
    server = SparkConnectServer(None, tmp_path / "spark", memory="1g").start()
    try:
        lake = Lake(tmp_path, SparkSettings(remote=server.url, sessions_file=tmp_path / "lanes.json"))
        directory = lake.stage({"shop.orders": [Changes(ORDERS, ROWS)]})
        killer = threading.Thread(target=_kill_when_it_merges, args=(server, tmp_path / "lake"))
        killer.start()
        with pytest.raises(
            SparkUnavailableError,
            match=r"the connection to Spark was lost during the merge of (shop\.orders|small tables)",
        ) as caught:
            lake.merge_staged(directory, ["shop.orders"])
        killer.join()
        assert "\n" not in str(caught.value)
        server.start()
        lake.merge_staged(directory, ["shop.orders"])
        assert len(lake.rows("shop.orders", "id")) == 5
    finally:
        server.kill()


def _kill_when_it_merges(server: SparkConnectServer, lake: Path) -> None:
    """Kills Spark after the first commit, which creates the table. A cold server takes seconds from this commit to the commit of the
    merge.
    """
    end = time.monotonic() + END_SECONDS_MAX
    while not list(lake.glob("**/*.json")) and time.monotonic() < end:
        time.sleep(0.01)
    server.kill()


@pytest.mark.spark
def test_what_a_killed_run_left_running_is_ended_before_the_next_merges(lake: Lake) -> None:
    left = str(uuid.uuid4())
    assert lake.spark.sessions_file is not None
    lake.spark.sessions_file.write_text(
        json.dumps({"remote": lake.spark.remote, "sessions": [left, str(uuid.uuid4())]})
    )
    old = session._attach(lake.spark.remote, left)
    old.sql("SELECT 1").collect()
    outcome: list[str] = []
    statement = "SELECT max(a.id * b.id) FROM range(10000000) a CROSS JOIN range(10000000) b"
    endless = threading.Thread(target=lambda: outcome.append(_outcome(old, statement)))
    endless.start()
    with open_sessions(lake.spark, 1) as sessions:
        assert json.loads(lake.spark.sessions_file.read_text())["sessions"][1:] == [sessions[0].spark.session_id]
        endless.join(END_SECONDS_MAX)
        assert outcome == ["ended"]
    assert not lake.spark.sessions_file.exists()


def _outcome(old: object, statement: str) -> str:
    try:
        LakeSession(old).spark.sql(statement).collect()
    except Exception:  # Spark may report an interruption or a release in any of these ways.
        return "ended"
    return "finished"


@pytest.mark.spark
def test_fault_a_released_session_closes_nothing_when_it_is_collected(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a session closed something when it is collected, pyspark would take the lock of a pool that all sessions share, in whatever
    thread the garbage collection runs.
    """
    closed: list[str] = []
    with open_sessions(lake.spark, 2) as sessions:
        for session in sessions:
            session.spark.sql("SELECT 1").collect()
    gc.collect()
    monkeypatch.setattr(ExecutePlanResponseReattachableIterator, "shutdown", lambda: closed.append("the pool"))
    del session, sessions
    gc.collect()
    assert not closed


@pytest.fixture
def merged(lake: Lake) -> tuple[Lake, ChangesSegment]:
    directory = lake.stage({"shop.log": [Changes(Schema(ORDERS.columns), ROWS)]})
    lake.merge_staged(directory, ["shop.log"])
    (segment,) = read_staged_batch(directory).tables[0].changes
    return lake, segment


@pytest.mark.spark
def test_delta_itself_drops_a_transaction_it_has(merged: tuple[Lake, ChangesSegment]) -> None:
    """Delta must drop the transaction if another run committed it after this run looked."""
    lake, segment = merged
    with open_sessions(lake.spark, 1, BY_HAND) as (session,):
        session.sql(fold.staged_view("v", segment, session.uploaded))
        session.commit_as(f"sluice/shop/{LEDGER_ID}/shop.log", segment.last_order_key, "{}")
        session.commit("shop.log", merge_sql.append("v", segment, lake.target("shop.log"), applied_order_key=-1))
    assert len(lake.rows("shop.log", "id")) == len(ROWS)


@pytest.mark.spark
def test_a_second_write_without_its_transaction_is_refused(merged: tuple[Lake, ChangesSegment]) -> None:
    """After a broken connection, Spark Connect's client may repeat a write. This repetition must not write without its transaction."""
    lake, segment = merged
    with open_sessions(lake.spark, 1, BY_HAND) as (session,):
        session.sql(fold.staged_view("v", segment, session.uploaded))
        session.commit_as(f"sluice/shop/{LEDGER_ID}/shop.log", segment.last_order_key + 1, "{}")
        statement = merge_sql.append("v", segment, lake.target("shop.log"), applied_order_key=-1)
        session.commit("shop.log", statement)
        with pytest.raises(Exception, match=r"(?i)txn"):
            session.commit("shop.log", statement)
    assert len(lake.rows("shop.log", "id")) == 2 * len(ROWS)


@pytest.mark.spark
@pytest.mark.parametrize("vectors", [True, False])
def test_a_large_merge_marks_rows_only_where_the_table_may(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    monkeypatch.setattr(session, "SMALL_ROWS_MAX", -1)
    lake.way = "spark"
    lake.merge({"shop.orders": [Changes(ORDERS, ROWS)]}, deletion_vectors=vectors)
    lake.merge({"shop.orders": [Changes(ORDERS, CHANGED)]}, deletion_vectors=vectors)
    assert lake.rows("shop.orders", "id", "name") == [(0, "x"), (1, "y"), (3, "x"), (4, "x")]
    marks = list((lake.folder / "lake").glob("**/deletion_vector*"))
    assert bool(marks) == vectors
    if not vectors:
        assert lake.log("shop.orders").to_pyarrow_dataset().count_rows() == 4


@pytest.mark.spark
@pytest.mark.timeout(600)  # The test needs a cold start of Spark.
def test_a_process_merges_in_a_session_of_its_own(tmp_path: Path) -> None:
    lake = Lake(tmp_path, SparkSettings())
    directory = lake.stage(
        {"shop.orders": [Changes(ORDERS, ROWS)], "shop.log": [Changes(Schema(ORDERS.columns), ROWS)]}
    )
    toolchain = set_up([])
    jars = ",".join(str(jar) for jar in toolchain.delta_jars)
    environment = {**os.environ, "JAVA_HOME": str(toolchain.java.home)}
    command = [sys.executable, "-m", "tests.spark.merge_once", str(directory), str(tmp_path / "lake"), jars]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {report["table"]: report["rows_inserted"] for report in reports} == {"orders": 5, "log": 5}
    assert (
        deltalake.DeltaTable(str(tmp_path / "lake/shop/orders")).transaction_version(
            f"sluice/shop/{LEDGER_ID}/shop.orders"
        )
        == 5
    )
