"""Tests the cost of building the definitions of a destination with many tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.table_meta.table_list.head import HEAD
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_fake_ports
from tests.scale.fix_many_tables import MANY, Counted, counted, growth, make_destination

LOOKS_MAX = 20  # looks at the head of the list, for all definitions
DIGITS = 32  # of the name of a record


def built(root: Path, count: int) -> Counted:
    config, _ = make_destination(root, count)
    ports = make_fake_ports(config).ports()
    with counted() as found:
        build_definitions(config, ports).get_repository_def()
    return found


@pytest.mark.scale
def test_the_list_of_tables_is_parsed_once_for_all_definitions(tmp_path: Path) -> None:
    found = built(tmp_path, MANY)
    records = {name: count for name, count in found.read.items() if len(Path(name).stem) == DIGITS}
    assert set(records.values()) == {1}
    assert len(records) == found.named["table_of"] == MANY
    assert found.read[HEAD] < LOOKS_MAX


@pytest.mark.scale
@pytest.mark.found
def test_definitions_cost_the_same_for_each_table(tmp_path: Path) -> None:
    """Defect 27: each table read the list of all tables, so 1,000 tables took 105 s."""
    assert growth(tmp_path, built) < 2.2


@pytest.mark.scale
def test_a_list_that_was_replaced_is_parsed_again(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, 2)
    directory = config.destination_dir("shop")
    names = {each.name for each in read_tables(directory)}
    write_tables(directory, read_tables(directory)[:1])
    assert len(names) == 2
    assert len(read_tables(directory)) == 1
