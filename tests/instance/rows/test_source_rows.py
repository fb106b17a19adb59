"""Tests how rows with certain keys are read from a source that has replicas."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.instance.rows.source_rows import SourceRows
from tests.binlog.rows.event_bytes import ORDERS
from tests.fix_ledgers import at


class LaggingReader:
    """Reads from a server that lags. The server shows the position only after a pause, for each new reader."""

    def __init__(self) -> None:
        self.is_shown = False

    def shows(self, _position: object) -> bool:
        return self.is_shown

    def read(self, *_: object) -> Any:
        assert self.is_shown, "rows were read before the server had the position"
        return SimpleNamespace(refused=(), rows=1)

    def end(self) -> str:
        return "the end"

    def close(self) -> None:
        """Does nothing."""


class Tables:
    """Replaces the source's tables. Each condition gets a new reader."""

    def __init__(self) -> None:
        self.readers: list[LaggingReader] = []

    def table(self, _name: str) -> Any:
        return ORDERS

    def written(self, _table: object) -> set[str]:
        return set()

    def spark_columns(self, _table: object) -> list[tuple[str, str]]:
        return [(column.name, "bigint") for column in ORDERS.columns]

    def reader(self, *_: object) -> LaggingReader:
        self.readers.append(LaggingReader())
        return self.readers[-1]

    def close(self) -> None:
        """Does nothing."""


@pytest.mark.found
def test_each_condition_is_read_only_after_its_server_shows_the_position(tmp_path: Path) -> None:
    """Defect 1090: only the first condition waited. If the connection was lost before the second one, a replica that lagged could answer,
    and a repair wrote its older rows.
    """
    tables: Any = Tables()
    config = SluiceConfig.model_validate(
        {
            "data_dir": str(tmp_path),
            "lake": str(tmp_path),
            "destinations": {"shop": {"name": "shop", "source": {"user": "u"}}},
        }
    )

    def pause(_seconds: float) -> None:
        tables.readers[-1].is_shown = True

    rows = SourceRows(config, "shop", pause)
    rows._tables = tables
    found = rows.read(ORDERS.name, ["id = 1", "id = 2"], at(5), tmp_path)
    assert (found.rows, len(tables.readers)) == (2, 2)
