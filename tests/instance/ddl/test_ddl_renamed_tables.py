"""Tests tables that exchange names while one of them has stopped, on a real MySQL, a real engine and a real Spark: they are equal once the
stopped table is resumed.
"""

from __future__ import annotations

import pytest

from sluice.cdc_engine.acts.stopped_table import approve
from sluice.cdc_engine.destination_files import read_ledger
from tests.instance.ddl.test_ddl_review import Pipeline, pipeline

pytestmark = [pytest.mark.servers, pytest.mark.spark]

__all__ = ["pipeline"]


def test_ddl_identity_a_stop_goes_along_with_the_name_and_is_lifted_with_it(pipeline: Pipeline) -> None:
    database = pipeline.captured.database
    run = pipeline.captured.run
    a, b, free = (f"{database}.{name}" for name in ("a", "b", "free"))
    run(
        f"CREATE TABLE {a} (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {b} (id INT PRIMARY KEY, n VARCHAR(9))",
        f"INSERT INTO {a} VALUES (1, 10), (2, 20)",
        f"INSERT INTO {b} VALUES (1, 'x'), (2, 'y')",
        f"ALTER TABLE {a} RENAME COLUMN v TO w",  # This change waits for approval.
        f"UPDATE {a} SET w = 11 WHERE id = 1",
        f"RENAME TABLE {a} TO {free}, {b} TO {a}, {free} TO {b}",
        f"UPDATE {a} SET n = 'z' WHERE id = 2",
        f"INSERT INTO {b} VALUES (3, 30)",
        f"CREATE TABLE {database}.last (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.last VALUES (1)",
    )
    pipeline.flow_until("the other table goes on", lambda: pipeline.equal("last", "id"))
    assert (pipeline.state("a"), pipeline.state("b")) == ("DDL_HELD", "DDL_UNSUPPORTED")
    stop = read_ledger(pipeline.engine.directory).stopped(database, "b")
    assert stop is not None
    assert "which had stopped (DDL_HELD)" in stop.reason
    assert pipeline.rows("b", "id, n") == [(1, "x"), (2, "y")], "nothing is taken from a table that lacks changes"
    approve(pipeline.config.destination_dir("shop"), a, "apply")
    pipeline.flow_until(
        "both go on under their new names", lambda: pipeline.equal("a", "id, n") and pipeline.equal("b", "id, w")
    )
    assert (pipeline.state("a"), pipeline.state("b")) == ("FLOWING", "FLOWING")
