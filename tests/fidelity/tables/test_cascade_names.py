"""Tests foreign keys whose columns a batch renames or adds, on real servers: the tables equal SELECT, or stop by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.table_meta.change.policy import PLANS, SchemaDecisions
from tests.fidelity.tables.test_cascade_corners import BELOW_ROWS, PARENT, ROWS, TREE, Corner, assert_followed

pytestmark = pytest.mark.servers

POLICY = dict.fromkeys(PLANS, "apply")
SERVERS = ("mysql80", "mariadb114")
CORNERS = {
    "a child whose foreign key gets another column": Corner(
        tables=TREE[:2],
        changes=(
            *(*ROWS, "ALTER TABLE c CHANGE p_id parent int", "DELETE FROM p WHERE id = 2"),
            "UPDATE p SET id = 9 WHERE id = 1",
        ),
        stops={"c": "altered the table in the same batch"},
    ),
    "a child whose key gets another name": Corner(
        tables=TREE[:2],
        changes=(*ROWS, "ALTER TABLE c CHANGE id ident int", "DELETE FROM p WHERE id = 2"),
        stops={"c": "altered the table in the same batch"},
    ),
    "a column that a table below refers to gets another name": Corner(
        tables=TREE,
        changes=(*ROWS, BELOW_ROWS, "ALTER TABLE c CHANGE id ident int", "DELETE FROM p WHERE id = 2"),
        stops={"c": "altered the table in the same batch", "e": "does not know all changes of corners.c"},
    ),
    "a foreign key over a column that old rows got": Corner(
        tables=(PARENT, "CREATE TABLE c (id int PRIMARY KEY)"),
        changes=(
            *(ROWS[0], "INSERT INTO c VALUES (10), (11)", "ALTER TABLE c ADD p_id int DEFAULT 2"),
            *("ALTER TABLE c ADD FOREIGN KEY (p_id) REFERENCES p (id) ON DELETE CASCADE", "DELETE FROM p WHERE id = 2"),
        ),
        stops={"c": "altered the table in the same batch"},
    ),
}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", CORNERS)
def test_foreign_keys_over_columns_with_new_names_stop_their_table(
    name: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Defect 56: if a batch renamed or added a column of a foreign key, changes by this foreign key were missing in the lake. If it renamed
    the key, the merge failed with KeyError.
    """
    review = SchemaDecisions(policy=lambda *_: POLICY)
    assert_followed(CORNERS[name], request.getfixturevalue(server), tmp_path, review)
