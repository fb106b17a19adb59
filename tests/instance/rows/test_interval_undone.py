"""Tests how often an interval of the binlog is read if its transactions undo rows within the binlog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.instance.rows.reading import IntervalReader
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.ports import PreparedTransactions
from sluice.cdc_engine.source.settings import SourceConfig
from tests.parser.scan.event_factory import START, EventFactory, NoHistory, feed, scanner


class Files:
    """Imitates the binlog files of an interval. Each transaction changes rows and then rolls them back, in separate blocks. `readings`
    counts how often the interval was read.
    """

    def __init__(self, transactions: int) -> None:
        self._transactions, self.readings, self.bytes_read = transactions, 0, 0

    def bound(self, epoch: int) -> None:
        """Returns None: the interval ends at the end of the files."""

    def blocks(self, start: DumpStart, _schemas: Any, _wanted: Any, prepared: PreparedTransactions) -> Iterator[Block]:
        self.readings += 1
        scan, make = scanner(start=start.position, prepared=prepared), EventFactory()
        for _ in range(self._transactions):
            undone = [make.query("BEGIN"), make.table_map(5), make.rows(5), make.query("ROLLBACK")]
            yield from feed(scan, undone)


def test_an_interval_is_read_three_times_however_many_of_its_transactions_undo_rows(tmp_path: Path) -> None:
    """Defect 1025: a backfill read its interval again from the start for each transaction with undone rows."""
    config = DestinationConfig(name="shop", source=SourceConfig(user="root"))
    files, schemas = Files(20), NoHistory()
    reader = IntervalReader(config, START, schemas, frozenset({"shop.orders"}), files=lambda: files)  # type: ignore[arg-type, return-value]
    staged = reader.staged(tmp_path, {})
    assert not staged.manifest.tables
    assert files.readings == 3
    assert reader.end.order_key > START.order_key
