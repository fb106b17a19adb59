"""Tests values that cannot be decoded. Such a value is NULL in the lake and listed in the quarantine. A replay puts it into its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, SparkConfig, TableConfig
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.console.lake.quarantine import quarantined, render, replay, to_json
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import target
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.quarantine.append import append_quarantine
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.fidelity.pipeline import Pipeline, run

pytestmark = [pytest.mark.servers, pytest.mark.spark]

DATABASE, DESTINATION = "quarantine_replay", "fidelity"
TABLES = ("notes", "log")  # One table with a key, and one without.


def config(folder: Path, spark: SparkConnectServer, charset: str) -> SluiceConfig:
    tables = {
        f"{DATABASE}.{table}": TableConfig(
            charsets={"body": charset}, undecodable="quarantine", history=table == "notes"
        )
        for table in TABLES
    }
    destination = DestinationConfig(name=DESTINATION, source=SourceConfig(user="root"), tables=tables)
    (folder / "engine" / DESTINATION).mkdir(parents=True, exist_ok=True)
    return SluiceConfig(
        data_dir=folder,
        lake=str(folder / "lake"),
        spark=SparkConfig(remote=spark.url),
        destinations={DESTINATION: destination},
    )


def merge(pipeline: Pipeline, chosen: SluiceConfig) -> Path:
    policy = ValuePolicy(charsets={"body": "ascii"}, undecodable="quarantine")
    staged = pipeline.staged(policies={f"{DATABASE}.{table}": policy for table in TABLES})
    assert not staged.stopped
    targets = {f"{DATABASE}.{table}": target(chosen, DESTINATION, f"{DATABASE}.{table}") for table in TABLES}
    spark = SparkSettings(remote=chosen.spark.remote, sessions_file=chosen.data_dir / "lanes.json")
    merge_batch(
        read_staged_batch(staged.path),
        targets,
        spark,
        BatchContext(quarantine_path=chosen.quarantine_path(DESTINATION)),
    )
    return staged.path


def rows(chosen: SluiceConfig, table: str) -> list[tuple[Any, ...]]:
    return found_in(chosen.table_path(DESTINATION, DATABASE, table), "t")


def current_versions(chosen: SluiceConfig, table: str) -> list[tuple[Any, ...]]:
    return found_in(chosen.side_table_paths(DESTINATION, DATABASE, table)[1], "t WHERE is_current")


def found_in(path: str, relation: str) -> list[tuple[Any, ...]]:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    found = builder.execute(f"SELECT id, body FROM {relation} ORDER BY id, body").read_all()
    return [tuple(row.values()) for row in pa.table(found).to_pylist()]


def test_a_value_is_quarantined_listed_and_put_back_fidelity(
    mysql80: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    body = "body varchar(40) character set latin1"
    run(
        mysql80,
        f"CREATE TABLE notes (id int PRIMARY KEY, {body}, n int)",
        f"CREATE TABLE log (id int, {body}, n int)",
        database=DATABASE,
    )
    pipeline = Pipeline.of(mysql80, DATABASE, tmp_path)
    values = "(1, x'C3A4', 1), (2, 'plain', 2), (3, x'FF', 3), (4, x'C3B6', 4)"
    run(mysql80, *(f"INSERT INTO {table} VALUES {values}" for table in TABLES), database=DATABASE)
    chosen = config(tmp_path, spark_server, "ascii")
    assert quarantined(chosen, DESTINATION) == []
    merge(pipeline, chosen)
    unknown = [(1, None), (2, "plain"), (3, None), (4, None)]
    assert rows(chosen, "notes") == rows(chosen, "log") == unknown
    listed = quarantined(chosen, DESTINATION, f"{DATABASE}.notes")
    assert [(each["key"], each["raw"]) for each in listed] == [
        ('{"id": 1}', b"\xc3\xa4"),
        ('{"id": 3}', b"\xff"),
        ('{"id": 4}', b"\xc3\xb6"),
    ]
    assert json.loads(json.dumps(to_json(listed[0])))["raw"] == "c3a4"
    assert render(listed).row_count == 3

    run(mysql80, "UPDATE notes SET body = 'later' WHERE id = 4", database=DATABASE)
    again = merge(pipeline, chosen)  # This merges everything again, and the update after it.
    assert len(quarantined(chosen, DESTINATION)) == 6
    assert [each.refused for each in replay(chosen, DESTINATION)] == [3, 3]
    results = replay(config(tmp_path, spark_server, "utf8mb4"), DESTINATION)
    outcome = {each.table: (each.put_back, each.superseded, each.refused) for each in results}
    assert outcome == {f"{DATABASE}.notes": (1, 1, 1), f"{DATABASE}.log": (2, 0, 1)}
    assert rows(chosen, "notes") == [(1, "ä"), (2, "plain"), (3, None), (4, "later")]
    assert current_versions(chosen, "notes") == rows(chosen, "notes")
    assert rows(chosen, "log") == [(1, "ä"), (2, "plain"), (3, None), (4, "ö")]
    left = [(each["key"], each["raw"]) for each in quarantined(chosen, DESTINATION, f"{DATABASE}.notes")]
    assert sorted(left) == [('{"id": 3}', b"\xff"), ('{"id": 4}', b"\xc3\xb6")]
    assert append_quarantine(read_staged_batch(again), chosen.quarantine_path(DESTINATION), {}, BY_HAND) == 0, (
        "what was put back stays so"
    )
