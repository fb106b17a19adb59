"""Tests transforms with a real source and Spark. The lake has the rows as the function returns them, whether they come from a snapshot, the
stream, a repair or a backfill.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.tables import transform_functions
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.values import Verdict
from tests.instance.fix_destination import running
from tests.spark.rows.test_repair_on_spark_equality import Broken
from tests.spark.snapshot.test_changed_settings_snapshot import Shop
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.seeds]

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc

def numbers(rows):
    return pa.record_batch({"filler": pc.utf8_upper(rows["filler"]), "size": pc.utf8_length(rows["filler"])})

def people(rows):
    domain = pc.replace_substring_regex(rows["email"], ".*@", "")
    kept = pc.equal(pc.fill_null(rows["kind"], 0), 0)  # 1: a test
    return pa.record_batch({"email": pa.nulls(rows.num_rows, pa.string()), "domain": domain, "_sluice_keep": kept})
"""
NUMBERS = {"transform": {"function": "shop_rows:numbers", "reads": ["filler"], "writes": ["filler", "size"]}}
PEOPLE = {
    "transform": {
        "function": "shop_rows:people",
        "reads": ["email", "kind"],
        "writes": ["email", "domain"],
        "drops": True,
    }
}


class Transformed(Shop, Broken):
    """Has two tables with transforms. `numbers` is merged together with other small tables. Spark merges `people`, which has a change log
    and a history.
    """

    def describe(self, numbers: Mapping[str, object], people: Mapping[str, object]) -> None:
        settings = {"merge": "spark", "history": True, "change_log": True, **people}
        self.say("", numbers=json.dumps(numbers)[1:-1], people=json.dumps(settings)[1:-1])

    def is_read_again(self, engine: Engine, name: str) -> bool:
        """Returns whether a statement stopped the table and a re-snapshot of it has begun, after the next batch."""
        self.merge_next(engine)
        record = SnapshotRecords(self.captured.directory).get(name)
        return (
            record is not None
            and record.is_open
            and "DDL_UNSUPPORTED: a statement altered the column kind" in record.reason
        )

    def numbers(self, columns: str = "n, filler, size") -> set[tuple[object, ...]]:
        return self.lake("numbers", columns, "n < 1000")


def test_rows_of_a_snapshot_the_stream_a_repair_and_a_backfill_are_transformed_snapshot(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "shop_rows.py").write_text(MODULE)
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setattr(transform_functions, "_FUNCTIONS", {})
    monkeypatch.delitem(sys.modules, "shop_rows", raising=False)
    shop = Transformed(tmp_path, mysql80, spark_server)
    base = shop.captured.database
    people, numbers = f"{base}.people", f"{base}.numbers"
    shop.captured.run(f"CREATE TABLE {people} (id INT PRIMARY KEY, email VARCHAR(20) NOT NULL, kind INT)")
    shop.describe({}, {})
    with running(shop.captured) as engine:
        shop.captured.run(
            f"INSERT INTO {people} VALUES (1, 'ann@a.org', NULL), (2, 'bob@b.org', 1), (3, 'cid@c.org', 0)",
            f"INSERT INTO {numbers} VALUES (1, 'a'), (2, 'bc')",
        )
        shop.merge(engine)
        assert shop.numbers("n, filler") == {(1, "a"), (2, "bc")}
    shop.describe(NUMBERS, PEOPLE)
    with running(shop.captured) as engine:
        assert shop.stopped(engine) == {"numbers": "RULES_CHANGED", "people": "RULES_CHANGED"}
        shop.captured.run(f"INSERT INTO {people} VALUES (4, 'dan@d.org', 1)")  # This change is buffered, or read.
        shop.settle(engine)
        assert shop.numbers() == {(1, "A", 1), (2, "BC", 2)}
        assert shop.lake("people", "id, email, domain") == {(1, None, "a.org"), (3, None, "c.org")}
        shop.captured.run(
            f"UPDATE {people} SET kind = 0 WHERE id = 2",  # The row enters the condition.
            f"UPDATE {people} SET kind = 1 WHERE id = 3",  # The row leaves the condition.
            f"UPDATE {people} SET id = 11 WHERE id = 1",
            f"DELETE FROM {people} WHERE id = 4",  # This row was never in the lake.
            f"UPDATE {numbers} SET filler = 'xyz' WHERE n = 1",
        )
        shop.merge(engine)
        assert shop.numbers() == {(1, "XYZ", 3), (2, "BC", 2)}
        lake = {(2, None, "b.org"), (11, None, "a.org")}
        assert shop.lake("people", "id, email, domain") == lake
        assert shop.lake("people__history", "id, email, domain", "is_current") == lake
        logged = shop.lake("people__log", "before['domain'], after['domain'], after['email']")
        assert logged >= {(None, "b.org", None), ("c.org", None, None), ("a.org", "a.org", None)}, (
            "enters, leaves, moves"
        )
        shop.captured.run(
            f"ALTER TABLE {people} MODIFY kind BIGINT, MODIFY email TEXT NOT NULL, ADD COLUMN note CHAR(3) DEFAULT 'new'",
            f"INSERT INTO {people} VALUES (5, 'eva@e.org', 0, 'own')",
        )
        wait_for("the table is to be read again", lambda: shop.is_read_again(engine, people), 60)
        shop.settle(engine)
        lake |= {(5, None, "e.org")}
        assert shop.lake("people", "id, email, domain") == lake
        assert shop.lake("people", "id, note") == {(2, "new"), (11, "new"), (5, "own")}

        shop.insert(7, 10)
        shop.merge(engine)
        found = shop.compared()
        assert (found["numbers"].verdict, found["numbers"].left_out) == (Verdict.EQUAL, ("filler", "size"))
        assert "the transform shop_rows:people drops rows" in found["people"].reason
        shop.by_another_hand(f"DELETE FROM delta.`{shop.location('numbers')}` WHERE n = 2")
        with shop.streaming(engine):
            assert shop.repair(numbers).all_right
        assert {(2, "BC", 2)} <= shop.numbers()
        (seventh,) = shop.lake("numbers", "n, filler, size", "n = 7")
        shop.by_another_hand(f"DELETE FROM delta.`{shop.location('numbers')}` WHERE n = 7")
        shop.backfill(0, tables=(numbers,))
        assert seventh in shop.numbers()
        assert seventh[1] == str(seventh[1]).upper()
        assert shop.stopped(engine) == {}
    shop.describe({}, PEOPLE)
    with running(shop.captured) as engine:
        assert shop.stopped(engine) == {"numbers": "RULES_CHANGED"}
        shop.settle(engine)
        assert {(1, "xyz"), (2, "bc")} <= shop.numbers("n, filler")
