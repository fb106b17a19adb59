"""Tests what a run writes after one of a thousand Delta tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.destination_files.lake_tables import ALL_RECORDS, FOLDER, RECORDS
from tests.scale.fix_many_tables import MANY, Counted, counted, keep_lake_tables, make_destination, table_name

ZOOKEEPER_BYTES_MAX = 1_000_000
TABLES_MAX = 100_000


@pytest.mark.scale
@pytest.mark.found
def test_a_merged_table_writes_one_small_record(tmp_path: Path) -> None:
    """Defect 27: the record of all tables was written again for each table, and with 3,500 tables its size was close
    to ZooKeeper's limit.
    """
    config, _ = make_destination(tmp_path, MANY)
    kept = keep_lake_tables(config, MANY)
    folder = config.destination_dir("shop") / FOLDER
    sizes = [each.stat().st_size for each in folder.iterdir()]
    assert len(sizes) == RECORDS
    assert max(sizes) < 2 * sum(sizes) / RECORDS, "the tables are divided evenly"
    assert max(sizes) * TABLES_MAX / MANY < ZOOKEEPER_BYTES_MAX
    with counted() as found:
        kept.keep({table_name(7): ("id", 2)})
    assert sum(found.written[name] for name in found.written if name.endswith(".tmp")) == 1
    assert LakeTables(config.destination_dir("shop")).get(table_name(7)) == ("id", 2)


@pytest.mark.scale
def test_a_batch_with_all_tables_writes_each_record_once(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, MANY)
    with counted() as found:
        keep_lake_tables(config, MANY)
    assert sum(found.written[name] for name in found.written if name.endswith(".tmp")) == RECORDS


@pytest.mark.scale
def test_a_run_reads_the_records_of_its_tables_only(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, MANY)
    keep_lake_tables(config, MANY)
    with counted() as found:
        records = LakeTables(config.destination_dir("shop"))
        assert records.get(table_name(7)) == records.get(table_name(7)) == (f"id-{table_name(7)}", 1)
        records.keep({table_name(7): ("id", 2)})
    assert len(_records_in(found)) == 1
    with counted() as found:
        assert len(records.names) == MANY
    assert len(_records_in(found)) >= RECORDS - 1


def _records_in(found: Counted) -> set[str]:
    return {name for name in found.read if f"{FOLDER}/{name}" in ALL_RECORDS}
