"""Tests how `sluice why` searches the versions of a table for the changes of one row. The table is imitated."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.lake.history import HistoryTable
from sluice.console.lake.life import LOOKS_MAX, GoneError, TableVersions, life
from sluice.spark_jobs.staged_batch import COMMIT_TIME, ORDER_KEY
from sluice.spark_jobs.tables.commit_record import CommittedInterval


class UpdatedInEachVersion:
    """A row that each version of the table changed."""

    def row(self, version: int) -> Mapping[str, Any]:
        return {"id": 1, "v": version, ORDER_KEY: version, COMMIT_TIME: None}


def commits(count: int) -> list[CommittedInterval]:
    """Returns the commits of versions 0 to `count` - 1, newest first."""
    return [
        CommittedInterval(
            version_before=version - 1,
            version=version,
            operation="MERGE",
            committed_at_us=0,
            first_order_key=version,
            last_order_key=version,
        )
        for version in range(count)
    ][::-1]


@pytest.mark.found
def test_a_search_that_ends_before_the_oldest_version_says_so() -> None:
    """Defect 78: `sluice why` ended its list after 500 steps without a message."""
    shown: list[int] = []
    with pytest.raises(GoneError, match=r"ended before version 9 .* `VERSION AS OF 9`"):
        shown.extend(step.values["v"] for step in life(UpdatedInEachVersion(), commits(LOOKS_MAX + 10)))
    assert shown == list(range(LOOKS_MAX + 9, 9, -1))


def test_a_search_that_reaches_the_oldest_version_shows_all() -> None:
    assert len(list(life(UpdatedInEachVersion(), commits(LOOKS_MAX)))) == LOOKS_MAX


@pytest.mark.found
def test_a_value_that_a_key_column_cannot_have_is_refused(tmp_path: Path) -> None:
    """Defect 1225: `sluice why` called a version of the table unreadable if the key was a UUID with hyphens for a BINARY(16), or a text for
    a DATE that is no date.
    """
    key = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
    rows = pa.table({"id": [key.bytes], "day": pa.array(["2026-03-01"]).cast(pa.date32()), "n": [5]})
    write_deltalake(tmp_path, rows)
    table = HistoryTable("shop", "shop.orders", str(tmp_path), ("id",), {})

    def row(name: str, value: str) -> Mapping[str, Any] | None:
        return TableVersions(table, {name: value}).row(0)

    for typed in (str(key), key.hex, f"0x{key.hex}", f"0X{key.hex.upper()}"):
        found = row("id", typed)
        assert found is not None
        assert found["n"] == 5
    assert row("day", "2026-03-01") is not None
    assert row("n", "+5") is not None
    for name, typed, wanted in (
        ("id", "3e1", "hexadecimal digits"),
        ("id", "a key", "hexadecimal digits"),
        ("day", "yesterday", "a date or time in ISO form"),
        ("n", "1_000", "a number"),
        ("n", "nan", "a number"),
    ):
        with pytest.raises(ConfigurationError, match=f"'{typed}' is not {wanted}"):
            row(name, typed)
