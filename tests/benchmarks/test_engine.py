"""Tests that `bench engine` measures all readers over TLS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.binlog_sets import BinlogSet, make_oltp
from benchmarks.engine import run

ROWS = 40


def few_rows_for_clients_with_tls(cursor: Any) -> BinlogSet:
    """Creates a small set. Then the server refuses new connections without TLS."""
    made = make_oltp(cursor, ROWS)
    cursor.execute("SET GLOBAL require_secure_transport = ON")
    return made


@pytest.mark.servers
def test_bench_engine_measures_each_reader_over_tls(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    run(file, release="mysql-9", tls=True, runs=1, sets={"oltp": few_rows_for_clients_with_tls})
    record = json.loads(file.read_text())
    assert (record["server"], record["tls"]) == ("mysql-9", True)
    figures = record["engine"]["oltp"]
    assert figures["rows"] == ROWS
    assert all(figures[name] > 0 for name in figures if name.endswith(("_rows_per_s", "raw_mb_per_s")))
