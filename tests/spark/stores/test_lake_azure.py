"""Tests a lake in Azure on a real Azurite: merges, a run that is killed, the comparison, the check and `sluice sql`."""

from __future__ import annotations

import json
import uuid
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from benchmarks.servers.azurite.server import KEY, AzuriteServer
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake.store import store_findings
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, Verdict
from sluice.object_stores.folder import StoreFolder
from sluice.orchestration.base.lake_settings import storage_options
from tests.console.lake.test_sql import ROWS, version_of
from tests.equality.shelf import Shelf
from tests.equality.unwritten import NothingToWaitFor
from tests.orchestration.fix_location import make_config
from tests.spark.conftest import Lake
from tests.spark.small.test_kill_fault import (
    BEFORE,
    BOTH,
    FIRST,
    KEYS_OF_LOG,
    ORDERS,
    SECONDS_MAX,
    Gate,
    require_all_once,
    run_killed_at,
    runs,
)
from tests.spark.staged import INSERT, Changes, Image, Schema
from tests.spark.stores.test_lake_s3 import require_both_ways
from tests.waiting import wait_for

__all__ = ["runs"]
pytestmark = [pytest.mark.servers, pytest.mark.store]
NAMED = {"azure_storage_account_key": "$LAKE_KEY"}


@pytest.fixture
def prefix(azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LAKE_KEY", KEY)
    return f"{azurite.root}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def azure_lake(lake: Lake, azurite: AzuriteServer, prefix: str) -> Lake:
    lake.root, lake.storage_options, lake.way = prefix, azurite.options, "small"
    return lake


@pytest.fixture
def azure_config(azurite: AzuriteServer, prefix: str, tmp_path: Path) -> SluiceConfig:
    return make_config(tmp_path).model_copy(update={"lake": prefix, "storage_options": azurite.options | NAMED})


@pytest.mark.spark
def test_azure_both_ways_merge_one_table_alternately(azure_lake: Lake) -> None:
    require_both_ways(azure_lake)


@pytest.mark.spark
def test_azure_fault_a_task_that_outlives_its_killed_run_changes_nothing_twice(
    azure_lake: Lake, tmp_path: Path, runs: list[BaseProcess]
) -> None:
    assert azure_lake.spark.sessions_file is not None
    azure_lake.merge({"shop.keyed": [Changes(ORDERS, FIRST)], "shop.log": [Changes(Schema(ORDERS.columns), FIRST)]})
    gate, directory = Gate(tmp_path, BEFORE), azure_lake.stage(BOTH)
    run_killed_at(gate, azure_lake, directory, runs)
    azure_lake.spark.sessions_file.unlink()
    azure_lake.merge_staged(directory, BOTH)
    require_all_once(azure_lake)
    gate.is_open.touch()
    wait_for("the task goes on", lambda: gate.passed, SECONDS_MAX)
    azure_lake.merge({"shop.keyed": [Changes(ORDERS, [Image(INSERT, 31, {"id": 7, "name": "later"})])]})
    assert [row[0] for row in azure_lake.rows("shop.log", "_sluice_order_key")] == KEYS_OF_LOG
    assert all(each.skipped for each in azure_lake.merge_staged(directory, BOTH).values())


def test_azure_equality_compares_a_lake_there(
    azure_config: SluiceConfig, mysql80: DatabaseServer, tmp_path: Path
) -> None:
    shelf = Shelf(mysql80, tmp_path)
    shelf.config = shelf.config.model_copy(update={"lake": azure_config.lake})
    options = storage_options(azure_config.storage_options)
    try:
        shelf.make("CREATE TABLE t (id BIGINT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
        source = Source(destination="shelf", host="127.0.0.1", port=mysql80.port, user="root")
        requested = ComparedDestination(shelf.config, "shelf", source, options, merged=NothingToWaitFor())
        verdicts = []
        for ids in ([1, 2], [3]):
            rows = pa.table({"id": ids, "_sluice_order_key": [1] * len(ids)})
            write_deltalake(shelf.path("t"), rows, mode="append", storage_options=options)
            verdicts += [each.verdict for each in compare_destination(requested, [f"{shelf.database}.t"], Extent())]
        assert verdicts == [Verdict.DIFFERENT, Verdict.EQUAL]
    finally:
        shelf.drop()


def test_azure_check_reports_what_is_missing_without_secrets(
    azure_config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = azure_config.model_copy(update={"staging": f"{azure_config.lake}/staged"})
    assert store_findings(staged, starts_spark=True) == ([], [])
    wrong = KEY.replace("E", "F", 1)
    monkeypatch.setenv("LAKE_KEY", wrong)
    problems, _ = store_findings(staged, starts_spark=True)
    assert [each.partition(":")[0].split()[0] for each in problems] == ["the", "staging"]
    assert "devstoreaccount1" in problems[0], "the account is no secret"
    assert wrong not in str(problems)
    monkeypatch.delenv("LAKE_KEY")
    (problem,), _ = store_findings(staged, starts_spark=True)
    assert "LAKE_KEY" in problem


def test_azure_a_lake_is_queried_by_names(
    azurite: AzuriteServer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    # Azurite's account has a fixed address for the client of DuckDB's Delta reader, unless this variable names another.
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{azurite.port}")
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "destinations" / "a.yaml").write_text("source: {user: u}\n")
    conf = {"data_dir": str(tmp_path / "data"), "lake": prefix, "storage_options": azurite.options | NAMED}
    (tmp_path / "conf" / "sluice.yaml").write_text(json.dumps(conf))
    config = load_config()
    write_deltalake(config.table_path("a", "shop", "orders"), pa.table(ROWS), storage_options=azurite.options)
    (directory := config.destination_dir("a")).mkdir(parents=True)
    write_tables(directory, [version_of("shop.orders"), version_of("shop.unmerged")])
    answer = CliRunner().invoke(app, ["sql", "SELECT id FROM shop.orders ORDER BY id", "--json"])
    assert answer.exit_code == 0, answer.exception
    assert json.loads(answer.stdout) == [{"id": 1}, {"id": 2}, {"id": 3}]
    missing = CliRunner().invoke(app, ["sql", "SELECT id FROM shop.unmerged"])
    assert missing.exit_code == 1
    assert "shop.unmerged cannot be read" in str(missing.exception)
    assert KEY not in str(missing.exception)


def test_azure_files_that_are_gone_already_are_skipped(azurite: AzuriteServer, prefix: str) -> None:
    """If pyarrow removes a file of Azure that does not exist, it may abort the process."""
    folder = StoreFolder(prefix, azurite.options)
    folder.write("a/file", b"left")
    folder.remove_files([*(f"a/none-{number}" for number in range(20)), "a/file"])
    assert folder.sizes() == {}
