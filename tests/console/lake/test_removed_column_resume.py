"""Tests that a table is not resumed while its Delta table lacks a column that another program removed."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake.lacking import refuse_unless_left_by_runs
from sluice.spark_jobs.side_tables.side_table import side_app_id_of
from sluice.spark_jobs.table_owner import OWNER_PROPERTY, Owner

NAME = "shop.orders"


def _configured(tmp_path: Path, settings: str) -> SluiceConfig:
    """Returns a configuration with a captured table."""
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\nlake: {tmp_path}/lake\n")
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(f"source: {{user: u}}\n{settings}")
    config = load_config(tmp_path / "conf")
    directory = config.destination_dir("shop")
    directory.mkdir(parents=True)
    columns = tuple(Column(name=name, type_code=3) for name in ("id", "Name", "note"))
    write_tables(directory, [TableVersion(database="shop", table="orders", columns=columns, key=("id",))])
    return config


def _removed(path: str, version: int, column: str) -> None:
    """Commits the rename of a column that the table already lacks."""
    commit = {"timestamp": 1, "operation": "RENAME COLUMN", "operationParameters": {"oldColumnPath": column}}
    Path(path, "_delta_log", f"{version + 1:020}.json").write_text(json.dumps({"commitInfo": commit}))


@pytest.mark.found
@pytest.mark.parametrize(
    ("removed", "refused"), [("name", True), ("_sluice_operation", True), ("note", False), ("gone", False)]
)
def test_identity_a_table_without_a_needed_column_is_not_resumed(tmp_path: Path, removed: str, refused: bool) -> None:
    """Defect 1084: `schema resume` resumed the table although the column was still missing. The next change stopped the table again."""
    config = _configured(tmp_path, "column_exclude: shop.orders:note\n")
    directory = config.destination_dir("shop")
    path = config.kept_path("shop", "shop", "orders")
    names = {"id", "name", "note", "gone", "_sluice_order_key", "_sluice_commit_time", "_sluice_operation"} - {removed}
    deltalake.write_deltalake(path, pa.table({name: [1] for name in sorted(names)}))
    owner = Owner(ledger_id=read_ledger(directory).ledger_id, destination="shop", table=NAME)
    log = deltalake.DeltaTable(path)
    log.alter.set_table_properties({OWNER_PROPERTY: owner.to_text()}, raise_if_not_exists=False)
    _removed(path, log.version(), removed)
    LakeTables(directory).keep({NAME: (str(log.metadata().id), log.version())})
    if refused:
        with pytest.raises(ActRefusedError, match=f"Sluice still needs {removed}"):
            refuse_unless_left_by_runs(config, "shop", NAME, "TABLE_RESTORED")
    else:
        refuse_unless_left_by_runs(config, "shop", NAME, "TABLE_RESTORED")


@pytest.mark.found
@pytest.mark.parametrize(("kind", "removed"), [("log", "after.Name"), ("history", "name"), ("history", "gone")])
def test_identity_a_table_without_a_needed_column_of_its_log_or_history_is_not_resumed(
    tmp_path: Path, kind: str, removed: str
) -> None:
    """Test for defect 1102: the same for a column of a change log or history."""
    config = _configured(tmp_path, "tables: {shop.orders: {history: true, change_log: true}}\n")
    directory = config.destination_dir("shop")
    paths = dict(zip(("log", "history"), config.side_table_paths("shop", "shop", "orders"), strict=True))
    app_id = side_app_id_of("shop", read_ledger(directory).ledger_id, kind, NAME)
    image = [{"id": 1, "note": 1}]
    deltalake.write_deltalake(paths[kind], pa.table({"id": [1], "before": image, "after": image}), name=app_id)
    log = deltalake.DeltaTable(paths[kind])
    _removed(paths[kind], log.version(), removed)
    LakeTables(directory).keep_side_table(NAME, kind, (str(log.metadata().id), log.version()))
    if removed == "gone":
        refuse_unless_left_by_runs(config, "shop", NAME, "TABLE_RESTORED")
    else:
        with pytest.raises(ActRefusedError, match=f"Sluice still needs {removed.lower()}:"):
            refuse_unless_left_by_runs(config, "shop", NAME, "TABLE_RESTORED")
