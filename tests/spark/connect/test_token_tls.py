"""Tests a Spark Connect server behind TLS and a token: batches are merged, and the token is in no log, record or setting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from sluice.console.toolchain.ports import LOOPBACK
from sluice.console.toolchain.spark.server import SparkConnectServer
from tests.spark.connect.gateway import Gateway
from tests.spark.connect.merge_through import TABLE
from tests.spark.staged import INSERT, Changes, Image, Schema, stage

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.secret]
TOKEN = "d41d8cd9-token-of-the-cluster"  # noqa: S105  it is made up
ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))


@pytest.fixture
def gateway(spark_server: SparkConnectServer, tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(spark_server.port, TOKEN, tmp_path) as made:
        yield made


def merge(gateway: Gateway, root: Path, way: str, number: int, token: str = TOKEN) -> str:
    """Merges one row in another process, and returns all that it printed."""
    image = Image(INSERT, 10 * number, {"id": number, "name": "x"})
    batch = stage(root / "staging", {TABLE: [Changes(ORDERS, [image])]}, delivery=number)
    remote = f"sc://{LOOPBACK}:{gateway.port}/;use_ssl=true"
    variables = {"SPARK_TOKEN": token, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(gateway.authority)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect.merge_through", str(root), remote, way, str(batch)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def require_unseen(root: Path, *texts: str) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert all(TOKEN not in text for text in texts)


def test_batches_are_merged_over_tls_with_the_token_which_nothing_shows(
    gateway: Gateway, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    said = [merge(gateway, tmp_path, way, number) for number, way in enumerate(("spark", "spark", "small"), start=1)]
    assert ["MERGED spark 1" in said[0], "MERGED spark 1" in said[1], "MERGED small 1" in said[2]] == [True] * 3, said
    assert (gateway.calls > 0, gateway.refused) == (True, 0)
    table = deltalake.DeltaTable(tmp_path / "lake" / TABLE.replace(".", "/"))
    assert pa.table(table.scan()).num_rows == 3
    require_unseen(tmp_path, *said, spark_server.log.read_text())


def test_a_wrong_token_is_refused_and_named_by_its_setting_only(gateway: Gateway, tmp_path: Path) -> None:
    wrong = TOKEN.replace("d", "e")
    said = merge(gateway, tmp_path, "spark", 1, token=wrong)
    assert "FAILED SparkAwayError" in said
    assert "the token is not valid" in said
    assert gateway.calls == 0
    assert wrong not in said
