"""Tests tables whose changes have no row events, so they are read again. Until the publication, status, checks, consistent snapshots and
`equal` report that the tables are older.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.values import Verdict
from sluice.orchestration.checks.stopped import older_tables
from tests.instance.fix_destination import running
from tests.spark.snapshot.test_changed_settings_snapshot import Shop

pytestmark = [pytest.mark.servers, pytest.mark.spark]


def require_older_until_published(shop: Shop, made: list[str], change: list[str], tables: set[str]) -> None:
    """`made`: statements before the engine reads. `change`: statements that change rows without row events."""
    shop.captured.run(*made)
    with running(shop.captured) as engine:
        for name in ("calm", *sorted(tables)):
            shop.captured.run(f"INSERT INTO {shop.captured.database}.{name} (id) VALUES (1), (2), (3)")
        shop.merge(engine)
        assert {each.verdict for each in shop.compared().values()} == {Verdict.EQUAL}
        shop.captured.run(*change)
        shop.say_that_they_are_older(engine, tables)
        shop.settle(engine)
        assert older_tables(shop.captured.directory) == {}
        shop.merge(engine)
        found = shop.compared()
        assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(found, Verdict.EQUAL), found


@pytest.mark.found
def test_tables_of_an_exchanged_partition_and_of_server_made_timestamps_are_older_until_they_are_published(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 32: a table that was read again after EXCHANGE PARTITION, or because of TIMESTAMPs that the server set, counted as acked and
    not as stopped.
    """
    shop = Shop(tmp_path, mysql80, spark_server)
    base = shop.captured.database
    columns = "(id INT PRIMARY KEY, v INT DEFAULT 7)"
    made = [
        f"CREATE TABLE {base}.calm {columns}",
        f"CREATE TABLE {base}.parted {columns} PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (100))",
        f"CREATE TABLE {base}.single {columns}",
        f"CREATE TABLE {base}.stamped {columns}",
    ]
    change = [
        f"DELETE FROM {base}.single WHERE id = 3",
        f"ALTER TABLE {base}.parted EXCHANGE PARTITION low WITH TABLE {base}.single",
        "SET SESSION explicit_defaults_for_timestamp = 0",
        f"ALTER TABLE {base}.stamped ADD made_at TIMESTAMP",
        f"INSERT INTO {base}.stamped (id) VALUES (4)",
    ]
    require_older_until_published(shop, made, change, {"parted", "single", "stamped"})


@pytest.mark.found
def test_a_table_whose_cascades_are_unseen_is_older_until_it_is_published(
    mariadb114: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 32: on MariaDB, a table that was read again because of unseen cascades counted as acked and not as stopped."""
    shop = Shop(tmp_path, mariadb114, spark_server)
    base = shop.captured.database
    shop.captured.describe(f"exclude: {base}\\.between")
    made = [
        f"CREATE TABLE {base}.calm (id INT PRIMARY KEY)",
        f"CREATE TABLE {base}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {base}.between (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE)",
        f"CREATE TABLE {base}.child (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES {base}.between (id) ON DELETE CASCADE)",
    ]
    change = [
        f"INSERT INTO {base}.parent VALUES (5), (6)",
        f"INSERT INTO {base}.between VALUES (5), (6)",
        f"INSERT INTO {base}.child VALUES (50, 5), (60, 6)",
        f"DELETE FROM {base}.parent WHERE id = 5",
    ]
    require_older_until_published(shop, made, change, {"child"})
