"""Tests the comparison of a table that has no Delta table yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema
from sluice.equality.destination import ComparedDestination, _compared
from sluice.equality.source_side import BinlogEnd
from sluice.equality.values import Extent, TableResult, Verdict

END = BinlogEnd(server_uuid="u", file="b.000001", offset=4)


class Counted:
    """A source that counts two rows of each table, and has one text for each of their values."""

    whole_doubles = True

    def row_count(self, database: str, table: str) -> int:  # noqa: ARG002
        return 2

    def end(self) -> BinlogEnd:
        return END

    def connect_again(self) -> None:
        pass

    def bounds(self, plan: Any) -> tuple[int, int]:  # noqa: ARG002
        return 1, 2

    def rows(self, plan: Any, conditions: Any) -> pa.RecordBatchReader:  # noqa: ARG002
        schema = pa.schema([("id", pa.string())])
        return pa.RecordBatchReader.from_batches(schema, [pa.record_batch({"id": ["1", "2"]}, schema=schema)])


class Merging:
    """Merges the two rows into the Delta table at `path` during the wait. If `path` is empty, nothing is merged."""

    def __init__(self, path: str) -> None:
        self._path = path

    def wait(self, end: BinlogEnd, seconds: float) -> bool:  # noqa: ARG002
        if self._path:
            write_deltalake(self._path, pa.table({"id": pa.array([1, 2], pa.int32()), "_sluice_order_key": [1, 1]}))
        return bool(self._path)

    def order_key(self, end: BinlogEnd) -> int | None:  # noqa: ARG002
        return None

    def progress(self) -> str:
        return "nothing"

    def halted(self) -> str:
        return ""


def config_of(folder: Path, **options: object) -> SluiceConfig:
    settings = DestinationConfig.model_validate(
        {"name": "shop", "source": {"user": "u"}, "tables": {"shop.orders": options}}
    )
    config = SluiceConfig(data_dir=folder / "data", lake=str(folder / "lake"), destinations={"shop": settings})
    config.destination_dir("shop").mkdir(parents=True)
    return config


def compared(config: SluiceConfig, merged: Any, side: Any) -> TableResult:
    request = ComparedDestination(config, "shop", Source(destination="shop", host="h", port=1, user="u"), merged=merged)
    column = DeclaredColumn(name="id", type="int", nullable=False)
    schema = TableSchema(database="shop", table="orders", charset="utf8mb4", columns=(column,), key=("id",))
    return _compared(request, (side, side), "shop.orders", schema, Extent()).result


@pytest.mark.found
@pytest.mark.parametrize("merges", [True, False])
def test_a_new_table_whose_rows_are_not_merged_yet_is_not_different(tmp_path: Path, *, merges: bool) -> None:
    """Defect 1227: `equal` reported a table DIFFERENT whose first batch was still to be merged, and advised a snapshot."""
    config = config_of(tmp_path)
    found = compared(config, Merging(config.table_path("shop", "shop", "orders") if merges else ""), Counted())
    assert (found.verdict, found.lake_rows) == ((Verdict.EQUAL, 2) if merges else (Verdict.UNDECIDED, 0))
    assert ("may be changes that are not merged yet" in found.reason) is not merges


@pytest.mark.found
def test_a_table_whose_rows_conf_leaves_out_is_not_different_without_a_delta_table(tmp_path: Path) -> None:
    """Defect 1228: `equal` reported a table with `rows` DIFFERENT as long as none of its rows was captured."""
    found = compared(config_of(tmp_path, rows="id > 7"), Merging(""), Counted())
    assert found.verdict is Verdict.REFUSED
    assert "conf/ captures only the rows where id > 7" in found.reason
