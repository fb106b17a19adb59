"""Tests `sluice catch-up` on a real server, with Dagster and Spark: it starts what it needs, merges up to the source's end, and stops it
again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.cdc_engine.config import load_config
from sluice.console.lake.sql import run_query
from sluice.console.stack.processes import ProcessFile
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.kernels import compile_kernels
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.spark.server import SparkConnectServer
from tests.acts.test_catch_up_until import server_time
from tests.fix_servers import ServerFactory
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]
SECOND = len("2026-01-01T00:00:00")  # A file of a binlog names only the second in which it begins.
# MySQL changes gtid_mode only by one step at a time.
GTIDS_ON = (
    "enforce_gtid_consistency = ON",
    "gtid_mode = OFF_PERMISSIVE",
    "gtid_mode = ON_PERMISSIVE",
    "gtid_mode = ON",
)


def conf_of(folder: Path, server: DatabaseServer) -> Path:
    """Writes conf/ with two destinations on one server: `shop`, and `idle`, which no test catches up."""
    conf = folder / "conf"
    (conf / "destinations").mkdir(parents=True)
    use_spark(conf)
    for name in ("shop", "idle"):
        source = {"host": LOOPBACK, "port": server.port, "user": "root"}
        destination = {"source": source, "include": f"{name}\\..*", "snapshot": "initial"}
        (conf / "destinations" / f"{name}.yaml").write_text(yaml.safe_dump(destination))
    return conf


def use_spark(conf: Path, running: str = "") -> None:
    """Configures the Spark at the address `running`. If `running` is empty, configures a free port for a Spark that the command starts."""
    spark = free_port()
    ports = {"webserver": free_port(), "code_server": free_port(), "spark_connect": spark}
    record = {"ports": ports, "spark": {"remote": running or f"sc://127.0.0.1:{spark}"}}
    (conf / "sluice.yaml").write_text(yaml.safe_dump(record))


def binlog_end(server: DatabaseServer) -> tuple[str, int]:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset, *_ = cursor.fetchone()
        return file, offset


def executed(server: DatabaseServer) -> str:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.gtid_executed")
        return str(cursor.fetchone()[0]).replace("\n", "")


def execute(server: DatabaseServer, *statements: str) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def catch_up(conf: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Runs the command. Returns its exit code, its JSON, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "sluice.console.main", "catch-up", "--json", *arguments],
        env={**os.environ, "SLUICE_CONF": str(conf)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.timeout(600)
def test_catch_up_merges_up_to_a_time_the_end_and_gtids_and_leaves_nothing_running(
    tmp_path: Path, fresh_mysql80: ServerFactory, spark_server: SparkConnectServer
) -> None:
    """The server first has no GTIDs, because then a binlog that only rotated must count as read. The first command starts its own Spark.
    The other commands use the Spark that runs.
    """
    compile_kernels(open_cache(), print)
    server = fresh_mysql80({"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
    for name in ("shop", "idle"):
        execute(server, f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v INT)")
        execute(server, f"INSERT INTO {name}.t VALUES (1, 1), (2, 2)")
    conf = conf_of(tmp_path, server)
    config = load_config(conf)

    began = server_time(server)[:SECOND]
    wait_for(
        "the server's clock has passed the second of the last INSERT", lambda: server_time(server)[:SECOND] > began
    )
    moment, end = server_time(server), binlog_end(server)
    execute(server, "INSERT INTO idle.t VALUES (4, 4)")

    code, found, said = catch_up(conf, "shop", "--until", moment)

    assert code == 0, said
    assert found["destinations"][0]["end"] == {"file": end[0], "offset": end[1], "executed": ""}, "not the current end"
    assert [each["destination"] for each in found["destinations"]] == ["shop"]
    assert rows(conf) == [(1, 1), (2, 2)]
    assert ProcessFile(config.data_dir / "processes.json").load() == []
    assert not (config.destination_dir("idle") / "status.json").exists(), "only the named destination is started"

    use_spark(conf, spark_server.url)
    execute(
        server,
        "UPDATE shop.t SET v = 20 WHERE id = 2",
        "DELETE FROM shop.t WHERE id = 1",
        "INSERT INTO shop.t VALUES (3, 3)",
    )
    execute(server, "INSERT INTO idle.t VALUES (3, 3)")  # The last change is not for this destination.
    execute(server, "FLUSH BINARY LOGS")

    code, _, said = catch_up(conf, "shop", "--timeout", "500")

    assert code == 0, said
    assert rows(conf) == [(2, 20), (3, 3)]

    execute(server, *(f"SET GLOBAL {each}" for each in GTIDS_ON), "INSERT INTO shop.t VALUES (5, 5)")
    gtids = executed(server)
    execute(server, "INSERT INTO idle.t VALUES (5, 5)")

    code, found, said = catch_up(conf, "shop", "--until", gtids, "--timeout", "500")

    assert code == 0, said
    assert found["destinations"][0]["end"] == {"file": "", "offset": 0, "executed": gtids}
    assert rows(conf) == [(2, 20), (3, 3), (5, 5)]


def rows(conf: Path) -> list[tuple[Any, ...]]:
    answer = run_query(load_config(conf), "SELECT id, v FROM shop.t ORDER BY id")
    return [tuple(row) for row in answer.rows()]
