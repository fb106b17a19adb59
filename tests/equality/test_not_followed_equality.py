"""Tests that a comparison does not report differences of a table whose changes the lake stopped to follow during the comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import TableState
from sluice.equality.source_side import BinlogEnd
from sluice.equality.values import Verdict
from tests.equality.test_without_delta_table_equality import Counted, Merging, compared, config_of
from tests.fix_ledgers import FileLedger


class Read(Counted):
    """A source whose rows can also be read by key."""

    def rows_of_keys(self, plan: Any, keys: Any) -> pa.RecordBatchReader:
        return self.rows(plan, keys)


class Interrupted(Merging):
    """Calls `begin` during the first wait, and then reports that everything is merged."""

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__("")
        self._begin = [begin]

    def wait(self, end: BinlogEnd, seconds: float) -> bool:  # noqa: ARG002
        while self._begin:
            self._begin.pop()()
        return True


def stop(directory: Path) -> None:
    stopped = StoppedTable(
        database="shop",
        table="orders",
        state=TableState.DDL_HELD,
        reason="x",
        position=Position(epoch=1, file="b.000001", offset=4),
    )
    FileLedger(directory).update(lambda _: Ledger(ledger_id="0123456789ab", stopped_tables=(stopped,)))


def begin_snapshot(directory: Path) -> None:
    SnapshotRecords(directory).begin(wanted("shop.orders", None, 0.0))


@pytest.mark.found
@pytest.mark.parametrize(
    ("begin", "why"),
    [(stop, "has stopped in DDL_HELD"), (begin_snapshot, "a snapshot of the table began during the comparison")],
    ids=["a stop", "a snapshot"],
)
def test_a_table_that_the_lake_no_longer_follows_is_not_different(
    tmp_path: Path, begin: Callable[[Path], None], why: str
) -> None:
    """Defect 1232: `equal` reported a table DIFFERENT that had stopped, or whose snapshot had begun, during its comparison."""
    config = config_of(tmp_path)
    directory = config.destination_dir("shop")
    rows = pa.table({"id": pa.array([1], pa.int32()), "_sluice_order_key": [1]})
    write_deltalake(config.table_path("shop", "shop", "orders"), rows)
    assert compared(config, Interrupted(lambda: None), Read()).verdict is Verdict.DIFFERENT
    found = compared(config, Interrupted(lambda: begin(directory)), Read())
    assert found.verdict is Verdict.REFUSED
    assert why in found.reason
