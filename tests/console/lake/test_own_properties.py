"""Tests that a property of a table in an object store is set by a conditional commit. The tests use a folder instead of a store."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.found
@pytest.mark.parametrize("ahead_ms", [-1000, 3_600_000])
def test_a_table_with_in_commit_timestamps_gets_its_owner(tmp_path: Path, ahead_ms: int) -> None:
    """Defect 1195: `sluice lake accept` refused a table with in-commit timestamps, which deltalake cannot write, and advised to check the
    disk. So a table that had been replaced had no way out of its state.
    """
    enabled = {"delta.enableInCommitTimestamps": "true"}
    deltalake.DeltaTable.create(str(tmp_path), pa.schema([("id", pa.int64())]))
    first, newest = tmp_path / "_delta_log" / f"{0:020d}.json", int(time.time() * 1000) + ahead_ms
    actions = {name: value for line in first.read_text().splitlines() for name, value in json.loads(line).items()}
    actions["commitInfo"] |= {"inCommitTimestamp": newest}
    actions["metaData"]["configuration"] = enabled
    actions["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
    names = sorted(actions)  # The first action is `commitInfo`.
    first.write_text("".join(json.dumps({name: actions[name]}) + "\n" for name in names))
    set_own_properties(
        deltalake.DeltaTable(str(tmp_path)), str(tmp_path), {"sluice.owner": "ours"}, {}, check=lambda: None
    )
    found = deltalake.DeltaTable(str(tmp_path))
    assert found.metadata().configuration == {**enabled, "sluice.owner": "ours"}
    second = (tmp_path / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
    assert json.loads(second[0])["commitInfo"]["inCommitTimestamp"] > newest, "it is in the first action, and later"


@pytest.mark.found
def test_in_commit_timestamps_may_be_enabled_in_any_letter_case() -> None:
    """Defect 1241: `'TRUE'` as a user's value enables in-commit timestamps too, but the commit had no time, so Spark refused the table."""
    described = SimpleNamespace(configuration={"delta.enableInCommitTimestamps": "TRUE"})
    log = SimpleNamespace(metadata=lambda: described, history=lambda _: [{"inCommitTimestamp": 7}])
    assert own_properties._in_commit_time(log, 5) == {"inCommitTimestamp": 8}
