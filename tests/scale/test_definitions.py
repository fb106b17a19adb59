"""Tests the cost of building the definitions of a destination with many tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.table_meta.history import tables_file
from sluice.cdc_engine.table_meta.history.tables_file import TABLES_FILE
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_fake_ports
from tests.scale.fix_many_tables import MANY, Counted, counted, growth, make_destination


def built(root: Path, count: int) -> Counted:
    config, _ = make_destination(root, count)
    ports = make_fake_ports(config).ports()
    with counted() as found:
        build_definitions(config, ports).get_repository_def()
    return found


@pytest.mark.scale
def test_the_list_of_tables_is_parsed_once_for_all_definitions(tmp_path: Path) -> None:
    assert built(tmp_path, MANY).read[TABLES_FILE] == 1


@pytest.mark.scale
@pytest.mark.found
def test_definitions_cost_the_same_for_each_table(tmp_path: Path) -> None:
    """Defect 27: each table read the list of all tables, so 1,000 tables took 105 s."""
    assert growth(tmp_path, built) < 2.2


@pytest.mark.scale
def test_a_list_that_was_replaced_is_parsed_again(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, 2)
    path = config.destination_dir("shop") / TABLES_FILE
    names = {each.name for each in tables_file.read_tables(path)}
    tables_file.write_tables(path, tables_file.read_tables(path)[:1])
    assert len(names) == 2
    assert len(tables_file.read_tables(path)) == 1
