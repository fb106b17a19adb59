"""Tests tables whose names cannot be file names, on a real server and a real Spark. Each table has its own folder in the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.sources import source_of
from sluice.console.lake.sql import lake_tables, run_query
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, Verdict
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline

pytestmark = [pytest.mark.servers, pytest.mark.spark]

NAMES = [
    *(
        "../../../outside",
        "../billing/inv",
        "../_sluice_consistent_snapshots/shop",
        "orders",
        "orders/2024",
        "..",
        "a%2Fb",
        "%s",
        "100%",
    ),
    *(
        "back`tick",
        'quo"te',
        "it's",
        "sp ace",
        "größe",
        "订单",
        "Orders",
        "_delta_log",
        "a\\b",
        "x?y#z",
        "[x]*{y}",
        "a:b",
    ),
]


class Odd(Pipeline):
    """A pipeline for a database whose tables have unusual names and the same columns. `say` runs a statement for each table."""

    def say(self, text: str) -> None:
        for name in NAMES:
            quoted = name.replace("`", "``")
            self.captured.run(text.format(table=f"`{self.captured.database}`.`{quoted}`"))

    def settle(self, engine: Engine) -> None:
        self.merge(engine)
        assert [(each.table, each.state, each.reason) for each in engine.status().stopped_tables] == []


# Spark merges 21 tables twice.
@pytest.mark.timeout(600)
@pytest.mark.found
def test_tables_with_names_that_no_file_has(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 6: the table `../../../outside` was outside the lake, and `orders/2024` was inside `orders`. Defect 25: `%s` in a name made
    `equal` fail, and `..` made runs fail.
    """
    odd = Odd(tmp_path / "a" / "b" / "c", mysql80, spark_server)
    odd.captured.describe("tables:", f"  {odd.captured.database}.log/ged: {{history: true, change_log: true}}")
    odd.say("CREATE TABLE {table} (id INT PRIMARY KEY, `per%cent` INT, `tick``s` VARCHAR(9), `q\"u'o` INT)")
    logged = f"`{odd.captured.database}`.`log/ged`"
    odd.captured.run(f"CREATE TABLE {logged} (id INT PRIMARY KEY)")
    with running(odd.captured) as engine:
        odd.captured.run(f"INSERT INTO {logged} VALUES (1), (2)")
        odd.say("INSERT INTO {table} VALUES (1, 1, 'one', 1), (2, 2, 'two', 2)")
        odd.settle(engine)
        odd.say("UPDATE {table} SET `per%cent` = 5 WHERE id = 1")
        odd.say("DELETE FROM {table} WHERE id = 2")
        odd.say("ALTER TABLE {table} ADD `new%s` INT DEFAULT 7")
        odd.say("INSERT INTO {table} VALUES (3, 3, 'three', 3, 3)")
        odd.settle(engine)
        lake = Path(odd.config.lake)
        tables = {log.parent for log in tmp_path.rglob("_delta_log") if log.is_dir()} - {
            lake / "_sluice_consistent_snapshots" / "shop"
        }
        assert {path.parent for path in tables} == {lake / odd.captured.database}
        assert len(tables) == len(NAMES) + 4  # `numbers`, and `log/ged` with its change log and its history
        requested = ComparedDestination(odd.config, "shop", source_of(odd.config.destinations["shop"]))
        found = {each.table: each for each in compare_destination(requested, (), Extent(settle_seconds=60.0))}
        assert {name: each.reason for name, each in found.items() if each.verdict is not Verdict.EQUAL} == {}
        assert len(found) == len(NAMES) + 2
        # DuckDB's own reader finds no files in a folder whose name is not ASCII, so the query leaves these tables out.
        shown = [table.name for table in lake_tables(odd.config) if table.path.isascii()]
        counts = list(
            run_query(odd.config, " UNION ALL ".join(f"SELECT count(*) FROM {name}" for name in shown)).rows()
        )
        assert len(counts) == len(shown) > len(NAMES) // 2
        assert all(count > 0 for (count,) in counts), list(zip(shown, counts, strict=True))
