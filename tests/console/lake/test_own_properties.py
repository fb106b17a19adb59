"""Tests that a property of a table in an object store is set by a conditional commit. The tests use a folder instead of a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from sluice.spark_jobs.tables import own_properties
from sluice.spark_jobs.tables.own_properties import set_own_properties

URL = "s3://lake/orders"


class Store:
    """The two requests that a commit needs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_new(self, name: str, content: bytes) -> bool:
        if (self._folder / name).exists():
            return False
        (self._folder / name).write_bytes(content)
        return True

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()


def test_a_property_is_set_unless_another_program_committed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(url: str, _: Mapping[str, str]) -> Store:
        assert url == URL
        return Store(tmp_path)

    monkeypatch.setattr(own_properties, "StoreFolder", store)
    table = deltalake.DeltaTable.create(str(tmp_path), pa.schema([("at", pa.timestamp("us"))]), name="orders")
    set_own_properties(table, URL, {"sluice.owner": "ours"}, {}, check=lambda: None)
    with pytest.raises(CommitFailedError, match="version 1 was committed by another writer"):
        set_own_properties(table, URL, {"sluice.owner": "theirs"}, {}, check=lambda: None)
    found = deltalake.DeltaTable(str(tmp_path))
    assert found.metadata().configuration == {"sluice.owner": "ours"}
    assert (found.metadata().name, found.protocol().reader_features) == ("orders", ["timestampNtz"])
