"""Tests that the lake equals the source after gh-ost or pt-online-schema-change swaps in a copy of a table. The rows of the copy were
edited by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.values import Verdict
from tests.instance.ddl.test_ddl_swaps import TOOLS
from tests.instance.fix_destination import running
from tests.spark.snapshot.test_changed_settings_snapshot import Shop


def copy_by_trigger(shop: Shop, copy: str) -> tuple[str, ...]:
    """Returns the triggers of pt-online-schema-change, which write to the copy in the transaction that changes the table."""
    base = shop.captured.database
    written = f"REPLACE INTO {base}.{copy} (n, filler) VALUES (NEW.n, NEW.filler)"
    gone = f"DELETE IGNORE FROM {base}.{copy} WHERE n <=> OLD.n"
    return (
        f"CREATE TRIGGER {base}.pt_del AFTER DELETE ON {base}.orders FOR EACH ROW {gone}",
        f"CREATE TRIGGER {base}.pt_ins AFTER INSERT ON {base}.orders FOR EACH ROW {written}",
    )


def begin_copy(shop: Shop, copy: str, *, triggers: bool) -> None:
    base = shop.captured.database
    shop.captured.run(
        f"CREATE TABLE {base}.{copy} LIKE {base}.orders",
        f"ALTER TABLE {base}.{copy} ADD COLUMN added INT NOT NULL DEFAULT 7",
        *(copy_by_trigger(shop, copy) if triggers else ()),
    )


def swap(shop: Shop, copy: str, remains: str, *, triggers: bool) -> None:
    """Copies the remaining rows, edits the copy by hand (one row is missing, one differs, one is added), and swaps the tables."""
    base = shop.captured.database
    shop.captured.run(
        f"INSERT IGNORE INTO {base}.{copy} (n, filler) SELECT n, filler FROM {base}.orders",
        f"INSERT INTO {base}.orders (n, filler) VALUES (300, 'meanwhile')",
        f"REPLACE INTO {base}.{copy} (n, filler) VALUES (300, 'meanwhile')",
        f"DELETE FROM {base}.{copy} WHERE n = 3",
        f"UPDATE {base}.{copy} SET filler = 'by hand' WHERE n = 4",
        f"INSERT INTO {base}.{copy} (n, filler) VALUES (999, 'by hand')",
        f"RENAME TABLE {base}.orders TO {base}.{remains}, {base}.{copy} TO {base}.orders",
        *([f"DROP TRIGGER {base}.pt_del", f"DROP TRIGGER {base}.pt_ins"] if triggers else []),
        f"DROP TABLE {base}.{remains}",
        f"INSERT INTO {base}.orders (n, filler, added) VALUES (1000, 'after', 9)",
    )


@pytest.mark.found
@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.parametrize("how", ["the copy is excluded", "the copy is captured", "the copy began before the start"])
@pytest.mark.parametrize("case", [("mysql80", "gh-ost"), ("mariadb114", "pt-online-schema-change")])
def test_the_lake_has_the_rows_of_the_copy(
    case: tuple[str, str], how: str, request: pytest.FixtureRequest, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 26: the lake still had the rows of the table that was swapped out (200 of 201 rows), and nothing was reported."""
    flavour, tool = case
    server: DatabaseServer = request.getfixturevalue(flavour)
    shop, (copy, remains) = (
        Shop(tmp_path, server, spark_server),
        (each.replace("numbers", "orders") for each in TOOLS[tool]),
    )
    base, triggers = shop.captured.database, tool.startswith("pt")
    shop.captured.describe("snapshot: initial", *([f"exclude: {base}\\._.*"] if how.endswith("excluded") else []))
    shop.captured.run(
        f"CREATE TABLE {base}.orders LIKE {base}.numbers",
        f"INSERT INTO {base}.orders VALUES (1, ''), (2, ''), (3, ''), (4, ''), (5, '')",
    )
    if how.endswith("start"):
        begin_copy(shop, copy, triggers=triggers)
        shop.captured.run(
            f"INSERT IGNORE INTO {base}.{copy} (n, filler) SELECT n, filler FROM {base}.orders WHERE n < 4"
        )
    with running(shop.captured) as engine:
        shop.settle(engine)
        if not how.endswith("start"):
            begin_copy(shop, copy, triggers=triggers)
        swap(shop, copy, remains, triggers=triggers)
        shop.merge(engine)
        shop.settle(engine)
        found = shop.compared()["orders"]
        assert found.verdict is Verdict.EQUAL, found.reason
        assert shop.lake("orders", "n, filler, added") == {
            *((n, "", 7) for n in (1, 2, 5)),
            *((4, "by hand", 7), (300, "meanwhile", 7), (999, "by hand", 7), (1000, "after", 9)),
        }
