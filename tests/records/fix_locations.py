"""Provides locations of records in files, memory, databases and ZooKeeper. No other test uses the same location."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import LedgerLocation, ZooKeeperServers

SERVERS = tuple(pytest.param(kind, marks=pytest.mark.servers) for kind in ("postgres16", "mysql80", "zookeeper39"))
SHARED = ("memory", "sqlite", *SERVERS)  # Stores that compare fencing tokens.
KINDS = ("file", *SHARED)


def location_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    """Returns a location without records."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    location = LedgerLocation(
        destination=name, directory=tmp_path / name, source=("db.example", 3306), session_seconds=10
    )
    if kind == "zookeeper39":
        return dataclasses.replace(
            location, kind="zookeeper", zookeeper=ZooKeeperServers(hosts=request.getfixturevalue(kind).hosts)
        )
    if kind == "sqlite":
        return dataclasses.replace(location, kind="sql", url=f"sqlite:///{tmp_path}/meta.db")
    if kind == "postgres16":
        return dataclasses.replace(location, kind="sql", url=request.getfixturevalue(kind).url)
    if kind == "mysql80":
        server = request.getfixturevalue(kind)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS meta_ha")
        return dataclasses.replace(location, kind="sql", url=f"mysql://root@127.0.0.1:{server.port}/meta_ha")
    return dataclasses.replace(location, kind=kind)
