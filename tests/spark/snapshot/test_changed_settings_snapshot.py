"""Tests tables in the lake when settings in conf/ that shape their rows change. The tables are re-snapshotted, and the lake then equals the
source.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from rich.console import Console

from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.meta.resume_requests import request
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.console.status.report import StatusReport, read_status, render
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.orchestration.checks.stopped import older_tables
from sluice.orchestration.run.spark_publish import spark_publish
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

ZEROS = "SET SESSION sql_mode = ''"
TABLES = {"dated", "zeros", "slow", "soft", "narrow", "loose", "lettered"}
HAN = "X'BABA'"  # 汉 in gbk, which a column that is declared as latin1 has


class Shop(Pipeline):
    """A pipeline whose database has several tables, each with its own settings."""

    def say(self, filters: str, **tables: str) -> None:
        named = ", ".join(f"{self.captured.database}.{name}: {{{options}}}" for name, options in tables.items())
        self.captured.describe(f"tables: {{{named}}}", *([filters] if filters else []))

    def stopped(self, engine: Engine) -> dict[str, str]:
        return {each.table: str(each.state) for each in engine.status().stopped_tables}

    def read_rows(self) -> None:
        """Does what a run of the snapshot job does."""
        outside = SnapshotCallbacks(
            run_lock=contextlib.nullcontext,
            publish=lambda record, table: spark_publish(self.config, "shop", record, table, "run", refusal=str).label,
            say=print,
            progress=lambda _: None,
        )
        run_all(snapshot_dependencies(self.config, "shop", outside), 0.0)

    def settle(self, engine: Engine) -> None:
        """Continues until no table is stopped and no snapshot is open. A run that fails ends the test."""
        records = SnapshotRecords(self.captured.directory)

        def is_settled() -> bool:
            self.merge_next(engine)
            self.read_rows()
            return not engine.status().stopped_tables and not any(each.is_open for each in records.all())

        wait_for("no table is stopped or read", is_settled, 240)

    def say_that_they_are_older(self, engine: Engine, tables: set[str]) -> None:
        """Checks that status, checks, comparison and consistent snapshot name exactly the tables with an open re-snapshot."""
        records = SnapshotRecords(self.captured.directory)

        def is_open() -> bool:
            self.merge_next(engine)
            return {each.table for each in records.all() if each.is_open} == tables

        wait_for("all are to be re-read", is_open, 60)
        self.merge(engine)
        names = {f"{self.captured.database}.{table}" for table in tables}
        assert set(older_tables(self.captured.directory)) == names
        (reported,) = read_status(self.config).destinations
        assert {
            each["table"] for each in reported.snapshots if "older than the cursor" in each["lake_is_older"]
        } == names
        shown = io.StringIO()
        Console(file=shown, width=400).print(render(StatusReport([], [reported], [])))
        assert shown.getvalue().splitlines()[-1].startswith(f"no problems; {len(tables)} tables in the lake are older")
        results = self.compared()
        assert {name for name, each in results.items() if "older than the cursor" in each.reason} == tables
        assert {
            each.name for each in read_consistent_snapshot(self.config.lake, "shop").tables.values() if each.stopped
        } == names

    def compared(self) -> dict[str, TableResult]:
        requested = ComparedDestination(self.config, "shop", source_of(self.config.destinations["shop"]))
        found = compare_destination(requested, (), Extent(settle_seconds=60.0))
        return {each.table.partition(".")[2]: each for each in found}

    def lake(self, table: str, columns: str, condition: str = "true") -> set[tuple[object, ...]]:
        builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(self.location(table)))
        found = pa.table(builder.execute(f"SELECT {columns} FROM t WHERE {condition}").read_all())
        return {tuple(row.values()) for row in found.to_pylist()}

    def location(self, table: str) -> str:
        return self.config.table_path("shop", self.captured.database, table)


@pytest.mark.found
def test_settings_that_shape_rows_re_snapshot_their_tables(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 2: changed settings were not noticed, so old rows stayed as they were. Defect 32: after KEY_NULL, the advised setting led to
    MERGE_FAILED. During a re-snapshot, nothing reported that the table's rows in the lake were older.
    """
    shop = Shop(tmp_path, mysql80, spark_server)
    base = shop.captured.database
    shop.captured.run(
        f"CREATE TABLE {base}.dated (day DATE, n INT, PRIMARY KEY (day, n))",
        f"CREATE TABLE {base}.zeros (id INT PRIMARY KEY, day DATE)",
        f"CREATE TABLE {base}.slow (id INT PRIMARY KEY, day DATE)",
        f"CREATE TABLE {base}.soft (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {base}.narrow (id INT PRIMARY KEY, a INT, b INT)",
        f"CREATE TABLE {base}.loose (id INT NOT NULL, v INT)",
        f"CREATE TABLE {base}.lettered (id INT PRIMARY KEY, note VARCHAR(9) CHARACTER SET latin1)",
    )
    sides = "history: true, change_log: true"
    shop.say(f"column_exclude: {base}.narrow:b", soft="deletes: soft", zeros=sides, slow=f"{sides}, merge: spark")
    with running(shop.captured) as engine:
        shop.captured.run(
            ZEROS,
            f"INSERT INTO {base}.dated VALUES ('2024-02-29', 1)",
            f"INSERT INTO {base}.zeros VALUES (1, '0000-00-00'), (2, '2024-02-29')",
            f"INSERT INTO {base}.slow VALUES (1, '0000-00-00'), (2, '2024-02-29')",
            f"INSERT INTO {base}.soft VALUES (1, 1), (2, 2)",
            f"DELETE FROM {base}.soft WHERE id = 1",
            f"INSERT INTO {base}.narrow VALUES (1, 1, 1), (2, 2, 2)",
            f"INSERT INTO {base}.loose VALUES (1, 1), (2, 2)",
            f"UPDATE {base}.loose SET v = 3 WHERE id = 2",
            f"INSERT INTO {base}.lettered VALUES (1, {HAN}), (2, 'a')",
        )
        shop.merge(engine)
        shop.captured.run(ZEROS, f"INSERT INTO {base}.dated VALUES ('0000-00-00', 1), ('2024-00-00', 1)")
        shop.merge(engine)
        assert shop.stopped(engine) == {"dated": "KEY_NULL"}
    text = "zero_dates: text"
    zeros = {"zeros": f"{text}, {sides}", "slow": f"{text}, {sides}, merge: spark"}
    shop.say("", loose="key: [id]", dated=text, lettered="charsets: {note: gbk}", **zeros)
    with running(shop.captured) as engine:
        assert set(shop.stopped(engine)) <= TABLES
        request(shop.captured.directory, base, "dated")
        shop.captured.run(
            ZEROS,
            f"INSERT INTO {base}.soft VALUES (1, 10)",
            f"INSERT INTO {base}.narrow VALUES (3, 3, 3)",
            f"UPDATE {base}.loose SET v = 4 WHERE id = 1",
            f"INSERT INTO {base}.zeros VALUES (3, '0000-00-00')",
            f"INSERT INTO {base}.dated VALUES ('0000-00-00', 2)",
            f"INSERT INTO {base}.lettered VALUES (3, {HAN})",
        )
        shop.say_that_they_are_older(engine, TABLES)
        shop.settle(engine)
        assert older_tables(shop.captured.directory) == {}
        shop.merge(engine)
        found = shop.compared()
        assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(found, Verdict.EQUAL), found
        assert shop.lake("dated", "day, n") == {
            *(("0000-00-00", 1), ("0000-00-00", 2)),
            *(("2024-00-00", 1), ("2024-02-29", 1)),
        }
        assert shop.lake("zeros", "id, day") == {(1, "0000-00-00"), (2, "2024-02-29"), (3, "0000-00-00")}
        for table, last in (("zeros", {(3, "0000-00-00")}), ("slow", set())):
            found_open = shop.lake(f"{table}__history", "id, day__string", "is_current")
            assert found_open == {(1, "0000-00-00"), (2, "2024-02-29")} | last
        assert shop.lake("lettered", "id, note") == {(1, "汉"), (2, "a"), (3, "汉")}
        assert "_sluice_deleted" not in deltalake.DeltaTable(shop.location("soft")).schema().to_arrow().names
