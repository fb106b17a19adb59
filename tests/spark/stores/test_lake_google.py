"""Tests a lake in Google Cloud Storage on a real fake-gcs-server: small merges, a run that is killed, the comparison, the check and
`sluice sql`.

Spark makes the tables in a folder, which is then uploaded, because Sluice has no jar of Google's client for Spark.
"""

from __future__ import annotations

import json
import uuid
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from benchmarks.servers.fake_gcs.server import FakeGcsServer
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake.store import store_findings
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, Verdict
from sluice.object_stores.files import opened
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.options import without_secrets
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
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema
from tests.spark.stores.test_lake_azure import make_tables
from tests.waiting import wait_for

__all__ = ["runs"]
pytestmark = [pytest.mark.servers, pytest.mark.store]
NAMED = {"google_service_account_key": "$LAKE_ACCOUNT"}


@pytest.fixture
def prefix(fake_gcs: FakeGcsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LAKE_ACCOUNT", fake_gcs.options["google_service_account_key"])
    return f"gs://{fake_gcs.bucket}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def google_lake(lake: Lake, fake_gcs: FakeGcsServer, prefix: str) -> Lake:
    lake.root, lake.storage_options, lake.way = prefix, fake_gcs.options, "small"
    return lake


@pytest.fixture
def google_config(prefix: str, tmp_path: Path) -> SluiceConfig:
    return make_config(tmp_path).model_copy(update={"lake": prefix, "storage_options": NAMED})


@pytest.mark.spark
def test_google_batches_are_merged_once(google_lake: Lake) -> None:
    log = Schema(ORDERS.columns)
    make_tables(google_lake)
    images = [
        Image(UPDATE_AFTER, 21, {"id": 1, "name": "one"}),
        Image(DELETE, 22, {"id": 4, "name": "x"}),
        Image(INSERT, 23, {"id": 11, "name": "new"}),
    ]
    directory = google_lake.stage({"shop.keyed": [Changes(ORDERS, images)], "shop.log": [Changes(log, images)]})
    found = [report.way for report in google_lake.merge_staged(directory, ["shop.keyed", "shop.log"]).values()]
    assert found == ["small", "small"]
    assert all(each.skipped for each in google_lake.merge_staged(directory, ["shop.keyed", "shop.log"]).values())
    assert (1, "one") in google_lake.rows("shop.keyed", "id", "name")
    assert (4, "x") not in google_lake.rows("shop.keyed", "id", "name")
    assert len(google_lake.rows("shop.log", "id")) == len(FIRST) + 3


@pytest.mark.spark
def test_google_fault_a_task_that_outlives_its_killed_run_changes_nothing_twice(
    google_lake: Lake, tmp_path: Path, runs: list[BaseProcess]
) -> None:
    assert google_lake.spark.sessions_file is not None
    make_tables(google_lake)
    gate, directory = Gate(tmp_path, BEFORE), google_lake.stage(BOTH)
    run_killed_at(gate, google_lake, directory, runs)
    google_lake.spark.sessions_file.unlink()
    google_lake.merge_staged(directory, BOTH)
    require_all_once(google_lake)
    gate.is_open.touch()
    wait_for("the task goes on", lambda: gate.passed, SECONDS_MAX)
    google_lake.merge({"shop.keyed": [Changes(ORDERS, [Image(INSERT, 31, {"id": 7, "name": "later"})])]})
    assert [row[0] for row in google_lake.rows("shop.log", "_sluice_order_key")] == KEYS_OF_LOG
    assert all(each.skipped for each in google_lake.merge_staged(directory, BOTH).values())


def test_google_equality_compares_a_lake_there(
    google_config: SluiceConfig, mysql80: DatabaseServer, tmp_path: Path
) -> None:
    shelf = Shelf(mysql80, tmp_path)
    shelf.config = shelf.config.model_copy(update={"lake": google_config.lake})
    options = storage_options(google_config.storage_options)
    try:
        shelf.make("CREATE TABLE t (id BIGINT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
        source = Source(destination="shelf", host="127.0.0.1", port=mysql80.port, user="root")
        asked = ComparedDestination(shelf.config, "shelf", source, options, merged=NothingToWaitFor())
        verdicts = []
        for ids in ([1, 2], [3]):
            rows = pa.table({"id": ids, "_sluice_order_key": [1] * len(ids)})
            write_deltalake(shelf.path("t"), rows, mode="append", storage_options=options)
            verdicts += [each.verdict for each in compare_destination(asked, [f"{shelf.database}.t"], Extent())]
        assert verdicts == [Verdict.DIFFERENT, Verdict.EQUAL]
    finally:
        shelf.drop()


def test_google_check_reports_what_is_missing(google_config: SluiceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = google_config.model_copy(update={"staging": f"{google_config.lake}/staged"})
    assert store_findings(staged, starts_spark=True) == ([], [])
    elsewhere = staged.model_copy(update={"lake": "gs://no-such-bucket/lake"})
    problems, _ = store_findings(elsewhere, starts_spark=True)
    assert ["cannot be read" in each for each in problems] == [True]
    monkeypatch.delenv("LAKE_ACCOUNT")
    (problem,), _ = store_findings(staged, starts_spark=True)
    assert "LAKE_ACCOUNT" in problem


def test_google_a_lake_is_asked_by_names(
    fake_gcs: FakeGcsServer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "destinations" / "a.yaml").write_text("source: {user: u}\n")
    conf = {"data_dir": str(tmp_path / "data"), "lake": prefix, "storage_options": NAMED}
    (tmp_path / "conf" / "sluice.yaml").write_text(json.dumps(conf))
    config = load_config()
    write_deltalake(config.table_path("a", "shop", "orders"), pa.table(ROWS), storage_options=fake_gcs.options)
    (directory := config.destination_dir("a")).mkdir(parents=True)
    write_tables(directory, [version_of("shop.orders"), version_of("shop.unmerged")])
    question = "SELECT a.id FROM shop.orders a JOIN shop.orders b USING (id) WHERE b.id > 1 ORDER BY a.id"
    answer = CliRunner().invoke(app, ["sql", question, "--json"])
    assert answer.exit_code == 0, answer.exception
    assert json.loads(answer.stdout) == [{"id": 2}, {"id": 3}]
    missing = CliRunner().invoke(app, ["sql", "SELECT id FROM shop.unmerged"])
    assert missing.exit_code == 1
    assert "shop.unmerged cannot be read" in str(missing.exception)


def test_google_a_file_is_read_in_ranges_and_a_missing_one_is_told(fake_gcs: FakeGcsServer, prefix: str) -> None:
    folder = StoreFolder(prefix, fake_gcs.options)
    folder.write("a/file", b"0123456789")
    with opened(f"{prefix}/a/file", fake_gcs.options) as file:
        file.seek(-3, 2)
        assert (file.read(2), file.read(), file.read()) == (b"78", b"9", b"")
    assert (folder.read("a/none"), folder.sizes(), folder.children()) == (None, {"a/file": 10}, {"a"})
    folder.remove_files(["a/none", "a/file"])
    assert folder.sizes() == {}


def test_google_a_key_is_a_secret_and_the_path_of_a_key_is_none() -> None:
    options = {"google_service_account": "/etc/sluice/account.json", "service_account_key": "secret-key"}
    assert (
        without_secrets("/etc/sluice/account.json refused secret-key", options)
        == "/etc/sluice/account.json refused ***"
    )
