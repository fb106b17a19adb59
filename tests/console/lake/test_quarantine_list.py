"""Tests that `sluice quarantine list` shows the values also if users have changed the quarantine table."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType
from typer.testing import CliRunner

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.staging.quarantine import SCHEMA
from sluice.console.main import app


@pytest.fixture
def quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Creates a quarantine table with one value, and returns the table's path."""
    conf = tmp_path / "conf"
    (conf / "destinations").mkdir(parents=True)
    (conf / "sluice.yaml").write_text(
        yaml.safe_dump({"data_dir": str(tmp_path / "data"), "lake": str(tmp_path / "lake")})
    )
    (conf / "destinations" / "shop.yaml").write_text("source: {user: u}\n")
    monkeypatch.setenv("SLUICE_CONF", str(conf))
    path = load_config(conf).quarantine_path("shop")
    value: dict[str, Any] = dict.fromkeys(SCHEMA.names, "x") | dict.fromkeys(("offset", "order_key", "image"), 1)
    value |= {"table": "orders", "raw": b"\xff", "commit_time": dt.datetime(2026, 3, 1, tzinfo=dt.UTC)}
    write_deltalake(path, pa.Table.from_pylist([value], schema=SCHEMA))
    return path


@pytest.mark.found
def test_columns_that_users_added_are_listed_as_json(quarantine: str) -> None:
    """Defect 1234: with a column of dates that somebody had added, `quarantine list --json` raised a TypeError."""
    table = DeltaTable(quarantine)
    table.alter.add_columns(Field("checked_on", PrimitiveType("date")))
    table.update(updates={"checked_on": "CAST('2026-03-02' AS DATE)"})
    done = CliRunner().invoke(app, ["quarantine", "list", "shop", "--json"])
    assert done.exit_code == 0, done.exception
    (shown,) = json.loads(done.output)
    assert (shown["raw"], shown["checked_on"]) == ("ff", "2026-03-02")


@pytest.mark.found
def test_values_are_listed_if_the_table_may_have_deletion_vectors(quarantine: str) -> None:
    """Defect 1235: if somebody had enabled deletion vectors for the quarantine, `quarantine list` and `replay` ended with a traceback."""
    DeltaTable(quarantine).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    done = CliRunner().invoke(app, ["quarantine", "list", "shop"])
    assert done.exit_code == 0, done.exception
    assert "x.orders" in done.output
