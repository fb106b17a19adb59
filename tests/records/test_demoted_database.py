"""Tests that a record store continues on the new primary server of its database, although the earlier primary still answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy

from sluice.cdc_engine.errors import NotSharedError
from sluice.cdc_engine.records.sql import SqlRecordStore


@pytest.mark.found
def test_a_database_that_became_read_only_is_left_at_the_next_write(tmp_path: Path) -> None:
    """Defect 1197: connections to a demoted server stayed in the pool, because the server answered. No write succeeded before a restart."""
    store = SqlRecordStore(f"sqlite:///{tmp_path}/meta.db", "shop")
    version = store.write("meta.json", "one", version=0)
    with store._engine.connect() as connection:
        connection.execute(sqlalchemy.text("PRAGMA query_only = ON"))
    with pytest.raises(NotSharedError, match=r"cannot be written: .*readonly"):
        store.write("meta.json", "two", version=version)
    # A new connection leads to the new primary server.
    assert store.write("meta.json", "two", version=version) == version + 1
