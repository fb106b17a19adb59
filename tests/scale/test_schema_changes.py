"""Tests what the schema history and its list of tables do if statements change a few of a thousand tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.cdc_engine.table_meta.table_list.head import HEAD
from sluice.cdc_engine.table_meta.table_list.reading import read_cascades, read_tables
from sluice.cdc_engine.table_meta.table_list.record import record_of
from tests.fix_ledgers import at
from tests.scale.fix_many_tables import BEGIN, MANY, Counted, counted, growth, make_destination, open_history

CALLS_GROWTH_MAX = 1.02  # With twice as many tables. One call per table would be 1.05.
LOOK_CALLS = 200  # The function calls of a look at a list that has not changed.


@pytest.mark.scale
@pytest.mark.found
def test_a_statement_costs_the_table_that_it_changes(tmp_path: Path) -> None:
    """Defect 27: each statement computed the version and the text of every table again, which took a second each with 3,000 tables."""
    config, history = make_destination(tmp_path, MANY)
    with counted() as found:
        history.apply("ALTER TABLE t00003 ADD COLUMN more int", "shop", at(100))
    assert found.named["table_version"] <= 2, "the statement's effect and the table"
    assert found.named["to_text"] == 3, (
        "the text of one table is made, for its digest and for its record, and that of the head"
    )
    assert {name for name in found.written if name.endswith(".tmp")} == {
        Path(each).with_suffix(".tmp").name for each in (record_of("shop.t00003"), HEAD)
    }
    assert set(found.read) <= {HEAD, Path(record_of("shop.t00003")).name}
    assert found.named["_followed"] == 0, "no foreign key concerns it"
    assert found.named["_is_same"] == 1, "the writer looks at one table"
    there = {each.name: each for each in read_tables(config.destination_dir("shop"))}
    assert len(there) == MANY
    assert [each.name for each in there["shop.t00003"].columns][-1] == "more"


@pytest.mark.scale
@pytest.mark.found
def test_the_calls_of_a_statement_do_not_depend_on_the_number_of_tables(tmp_path: Path) -> None:
    """Defect 27: each statement made a value for every table and added the digests of all tables, so its cost rose with their number."""

    def statement(root: Path, count: int) -> Counted:
        _, history = make_destination(root, count)
        history.apply("ALTER TABLE t00003 ADD COLUMN more int", "shop", at(100))  # It compiles what later ones use.
        with counted() as found:
            history.apply("ALTER TABLE t00004 ADD COLUMN more int", "shop", at(101))
        return found

    assert growth(tmp_path, statement) < CALLS_GROWTH_MAX


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
def test_foreign_keys_are_those_of_a_history_that_is_read_again(tmp_path: Path) -> None:
    """The history computes foreign keys again only after a statement that concerns one of them. The result must equal that of a history
    that is read again from its file.
    """
    config, history = make_destination(tmp_path, 30)
    for number, statement in enumerate(FOREIGN_KEYS, start=1):
        history.apply(statement, "shop", at(100 + number))
        assert history.all_cascades() == open_history(config).all_cascades(), statement
        listed = read_cascades(config.destination_dir("shop"))
        assert sorted(listed, key=str) == sorted(history.all_cascades(), key=str), statement
    assert history.all_cascades() == ()


@pytest.mark.scale
def test_a_reader_reads_the_records_of_the_tables_that_changed(tmp_path: Path) -> None:
    config, history = make_destination(tmp_path, MANY)
    directory = config.destination_dir("shop")
    tables = read_tables(directory)
    with counted() as found:
        assert read_tables(directory) is tables
    assert found.read == {HEAD: 1}
    assert found.calls < LOOK_CALLS, "a look does not depend on the number of tables"
    history.apply("ALTER TABLE t00003 ADD COLUMN more int", "shop", at(100))
    history.apply("DROP TABLE t00005", "shop", at(101))
    with counted() as found:
        assert len(read_tables(directory)) == MANY - 1
    assert found.read == {HEAD: 1, Path(record_of("shop.t00003")).name: 1, Path(record_of("shop.t00005")).name: 1}
    assert found.named["table_of"] == 1


@pytest.mark.scale
def test_a_start_writes_no_record_that_is_as_it_was(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, MANY)
    again = open_history(config)
    with counted() as found:
        again.publish(BEGIN)
    assert not found.written
    assert found.read[HEAD] == 1


@pytest.mark.scale
def test_the_first_list_syncs_each_file_once_and_the_folder_for_many_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = list[int](), os.fsync

    def counted_sync(descriptor: int) -> None:
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", counted_sync)
    make_destination(tmp_path, MANY)
    assert MANY < len(synced) < MANY * 1.1
