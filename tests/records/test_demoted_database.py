"""Tests that a record store continues after a failover of its database: it waits for no server without a limit, and leaves a server that
became read-only. Needs no server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

from sluice.cdc_engine.errors import NotSharedError
from sluice.cdc_engine.records.sql import ANSWER_SECONDS_MAX, SqlRecordStore


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


@pytest.mark.found
@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_no_request_waits_without_a_limit(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1201: requests to a MariaDB had no time limit. After its host lost power, engines and standby hosts waited until a restart."""
    given = dict[str, Any]()

    def connect(**arguments: Any) -> None:
        given.update(arguments)
        raise pymysql.err.OperationalError(2003, "no server")

    monkeypatch.setattr(pymysql, "connect", connect)
    with pytest.raises(NotSharedError, match="no server"):
        SqlRecordStore(f"{scheme}://sluice@db.{scheme}.invalid/meta", "shop")
    assert {given[f"{each}_timeout"] for each in ("connect", "read", "write")} == {ANSWER_SECONDS_MAX}


@pytest.mark.found
def test_options_of_the_url_and_the_limits_both_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1202: the time limit replaced `options` of the URL. With a search_path in it, the table was created in another schema."""
    given = dict[str, Any]()

    def connect(**arguments: Any) -> None:
        given.update(arguments)
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(NotSharedError, match="no server"):
        SqlRecordStore(
            "postgresql://sluice@db.invalid/meta?options=-c%20search_path%3Dsluice&connect_timeout=3", "shop"
        )
    limit = f"-c statement_timeout={ANSWER_SECONDS_MAX * 1000}"
    assert (given["options"], int(given["connect_timeout"])) == (f"{limit} -c search_path=sluice", 3)
