"""Tests a lake in Google Cloud Storage on a real fake-gcs-server: merges, a run that is killed, Spark's account, the comparison, the check
and `sluice sql`."""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from deltalake import write_deltalake
from typer.testing import CliRunner

from benchmarks.servers.fake_gcs.server import FakeGcsServer
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake.store import store_findings
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, Verdict
from sluice.object_stores.files import opened
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.options import without_secrets
from sluice.orchestration.base.lake_settings import storage_options
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.sql_text import delta_path
from tests.console.lake.test_sql import ROWS, version_of
from tests.equality.shelf import Shelf
from tests.equality.unwritten import NothingToWaitFor
from tests.orchestration.fix_location import make_config
from tests.parser.proxy import Proxy
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
TOKEN = "a-token-of-the-account"  # noqa: S105  of no real account
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
def test_google_both_ways_merge_one_table_alternately(google_lake: Lake) -> None:
    require_both_ways(google_lake)


@pytest.mark.spark
def test_google_fault_a_task_that_outlives_its_killed_run_changes_nothing_twice(
    google_lake: Lake, tmp_path: Path, runs: list[BaseProcess]
) -> None:
    assert google_lake.spark.sessions_file is not None
    google_lake.merge({"shop.keyed": [Changes(ORDERS, FIRST)], "shop.log": [Changes(Schema(ORDERS.columns), FIRST)]})
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


class TokenServer:
    """Answers requests for tokens as Google does. `requested` is the number of these requests."""

    def __init__(self) -> None:
        self.requested = 0
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> TokenServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        tokens = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                tokens.requested += 1
                content = json.dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        return Answer


def account_key(tokens: str, address: str) -> dict[str, str]:
    """Returns the key of a service account. `tokens` is the URL that answers requests for tokens, and `address` is the URL of the store."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    names = {"type": "service_account", "project_id": "shop", "client_id": "1", "client_email": "lake@shop.test"}
    return {
        **names,
        "private_key_id": "1",
        "private_key": private.decode(),
        "token_uri": tokens,
        "gcs_base_url": address,
    }


@pytest.mark.spark
def test_google_spark_sends_tokens_of_the_account_in_its_environment(
    fake_gcs: FakeGcsServer, prefix: str, tmp_path: Path
) -> None:
    sent = list[bytes]()

    def requested(piece: bytes) -> bytes:
        sent.append(piece)
        return piece

    with Proxy(fake_gcs.port) as proxy, TokenServer() as tokens:
        proxy.requested = requested
        address = f"http://127.0.0.1:{proxy.port}"
        key = account_key(tokens.url, address)
        options = {"google_service_account_key": json.dumps(key), "google_base_url": address}
        server = SparkConnectServer(None, tmp_path / "spark", memory="1g", extras=("google",))
        server.add_settings(spark_settings("google", options), spark_environment("google", options))
        try:
            server.start()
            with open_sessions(SparkSettings(remote=server.url), 1) as (session,):
                path = delta_path(f"{prefix}/t")
                session.spark.sql(f"CREATE TABLE {path} USING delta AS SELECT 1 AS id").collect()
                assert session.spark.table(path).count() == 1
                reported = " ".join(str(tuple(row)) for row in session.spark.sql("SET").collect())
            reported += " ".join(psutil.Process(server.pid).cmdline()) + server.log.read_text()
        finally:
            server.stop()
    assert tokens.requested == 1
    requests = b"".join(sent).lower()
    assert requests.count(f"authorization: bearer {TOKEN}".encode()) == requests.count(b" http/1.1\r\n") > 0
    assert TOKEN not in reported
    assert key["private_key"].split()[5] not in reported


def test_google_equality_compares_a_lake_there(
    google_config: SluiceConfig, mysql80: DatabaseServer, tmp_path: Path
) -> None:
    shelf = Shelf(mysql80, tmp_path)
    shelf.config = shelf.config.model_copy(update={"lake": google_config.lake})
    options = storage_options(google_config.storage_options)
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


def test_google_check_reports_what_is_missing(
    google_config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = google_config.model_copy(update={"staging": f"{google_config.lake}/staged"})
    assert store_findings(staged, starts_spark=True) == ([], [])
    elsewhere = staged.model_copy(update={"lake": "gs://no-such-bucket/lake"})
    problems, _ = store_findings(elsewhere, starts_spark=True)
    assert ["cannot be read" in each for each in problems] == [True]
    monkeypatch.delenv("LAKE_ACCOUNT")
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "empty"))
    (problem,), (warning,) = store_findings(staged, starts_spark=True)
    assert "LAKE_ACCOUNT" in problem
    assert "sluice setup --with google" in warning


def test_google_a_lake_is_queried_by_names(
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


def test_google_a_file_is_read_in_ranges_and_a_missing_one_is_an_error(fake_gcs: FakeGcsServer, prefix: str) -> None:
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
