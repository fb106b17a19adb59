"""Tests keys that are NULL after decoding. Several rows would get the same key. So the table stops as KEY_NULL, or a policy of the table
keeps the rows apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, images, run
from tests.fidelity.replay import folded, pipeline_with

pytestmark = pytest.mark.servers

DATED = "CREATE TABLE dated (day DATE, n INT, PRIMARY KEY (day, n)) ENGINE=InnoDB"
FINE = "CREATE TABLE fine (id INT PRIMARY KEY, day DATE) ENGINE=InnoDB"
DECLARED = "CREATE TABLE declared (a INT, b INT) ENGINE=InnoDB"
DAYS = ("0000-00-00", "2024-00-00", "2024-02-00", "2024-02-29")


@pytest.mark.parametrize("name", SERVERS)
def test_a_key_that_decodes_to_null_stops_its_table_or_is_text_identity(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    pipeline = pipeline_with(server, tmp_path, "nullkeys", DATED, FINE, DECLARED)
    rows = [f"INSERT INTO dated VALUES ('{day}', 1)" for day in DAYS]
    run(server, "USE nullkeys", *rows, "INSERT INTO fine VALUES (1, '0000-00-00'), (2, '2024-00-00')")
    run(server, "USE nullkeys", "INSERT INTO declared VALUES (1, NULL), (2, NULL)")
    staged = pipeline.staged(keys={"nullkeys.declared": ("b",)})
    reasons = {each.table: (each.state, each.reason) for each in staged.stopped}
    assert {table: state for table, (state, _) in reasons.items()} == {"dated": "KEY_NULL", "declared": "KEY_NULL"}
    assert "zero_dates: text" in reasons["dated"][1]
    assert "`key`" in reasons["declared"][1]
    assert [each.table for each in staged.manifest.tables] == ["fine"]
    text = pipeline.staged(
        policies={"nullkeys.dated": ValuePolicy(zero_dates="text")}, left_out={"nullkeys.declared": -1}
    )
    assert sorted(day for day, _ in folded(images(text, "dated"))) == sorted(DAYS)
