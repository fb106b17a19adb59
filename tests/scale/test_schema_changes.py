"""Statements that change a few of a thousand tables: what the schema history and its list of tables do."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.table_meta.history import tables_file
from sluice.cdc_engine.table_meta.history.tables_file import TABLES_FILE
from tests.fix_ledgers import at
from tests.scale.fix_many_tables import MANY, counted, make_destination, open_history

WALKED_CALLS = 60  # The function calls for a table that is only looked at.


@pytest.mark.scale
@pytest.mark.found
def test_a_statement_costs_the_table_that_it_changes(tmp_path: Path) -> None:
    """Defect 27: each statement computed the version and the text of every table again, which took a second each with 3,000 tables."""
    config, history = make_destination(tmp_path, MANY)
    with counted() as found:
        history.apply("ALTER TABLE t00003 ADD COLUMN more int", "shop", at(100))
    assert found.named["table_version"] <= 2, "the statement's effect and the table"
    assert found.named["_text_of"] == 1, "the text of one table is made"
    assert found.named["_followed"] == 0, "no foreign key concerns it"
    assert found.calls < WALKED_CALLS * MANY
    there = {each.name: each for each in tables_file.read_tables(config.destination_dir("shop") / TABLES_FILE)}
    assert len(there) == MANY
    assert [each.name for each in there["shop.t00003"].columns][-1] == "more"


FOREIGN_KEYS = (
    "ALTER TABLE t00008 MODIFY c1 varchar(60)",  # This table is a parent.
    "ALTER TABLE t00009 MODIFY id int",  # This table is a child.
    "CREATE TABLE child (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES t00001 (id) ON DELETE CASCADE)",
    "CREATE TABLE later (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES missing (id) ON DELETE SET NULL)",
    "CREATE TABLE missing (id int PRIMARY KEY)",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "ALTER TABLE other ADD CONSTRAINT fk FOREIGN KEY (id) REFERENCES t00002 (id) ON UPDATE CASCADE",
    "ALTER TABLE other DROP FOREIGN KEY fk",
    "RENAME TABLE t00001 TO renamed",
    "DROP TABLE child",
    "DROP TABLE t00019",
    "DROP DATABASE shop",
)


@pytest.mark.scale
def test_foreign_keys_are_those_of_a_history_that_is_read_anew(tmp_path: Path) -> None:
    """Foreign keys are computed again only after a statement that concerns one of them."""
    config, history = make_destination(tmp_path, 30)
    for number, statement in enumerate(FOREIGN_KEYS, start=1):
        history.apply(statement, "shop", at(100 + number))
        assert history.all_cascades() == open_history(config).all_cascades(), statement
        listed = tables_file.read_cascades(config.destination_dir("shop") / TABLES_FILE)
        assert listed == history.all_cascades(), statement
    assert history.all_cascades() == ()
