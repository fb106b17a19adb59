"""Tests that a backfill corrects rows of the lake, and builds a past state, from an archive of binlog files while the source does not
answer.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import deltalake
import pytest

from benchmarks.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config.reading import archive_of_request
from sluice.cdc_engine.errors import ActRefusedError, SourceConnectionError
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.run.rows.backfill import Done, plan_backfill, run_backfill
from sluice.orchestration.run.rows.request import BackfillRequest
from sluice.orchestration.run.spark_merge import spark_merge
from tests.instance.failover.fix_pair import requested
from tests.instance.failover.test_archive_files_s3 import uploaded
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import SECOND_US, Pipeline, by_hand

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.seeds]


def test_rows_come_back_from_an_archive_in_a_folder_and_in_a_store(
    mysql80: DatabaseServer,
    tmp_path: Path,
    spark_server: SparkConnectServer,
    s3_store: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**13)  # The rows have future times.
    ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]

    def request(archive: str, *, begin: int = 900, end: int | None = None, into: str = "") -> BackfillRequest:
        return BackfillRequest(
            destination="shop",
            from_us=(pipeline.base + begin) * SECOND_US,
            to_us=None if end is None else (pipeline.base + end) * SECOND_US,
            tables=(pipeline.name,),
            into=into,
            archive=archive_of_request(archive, "", tmp_path)[0],
        )

    def backfill(requested_files: BackfillRequest) -> Done:
        return run_backfill(by_hand(ports, pipeline.config), requested_files)

    with running(pipeline.captured) as engine:
        for number in range(3):
            pipeline.insert(number, 10 * number)
        pipeline.merge(engine)
        for number in range(3, 6):
            pipeline.insert(number, 10 * number + 1000)
        pipeline.change(f"DELETE FROM {pipeline.name} WHERE n = 1")
        pipeline.merge(engine)
    rows = pipeline.rows()
    folder = kept(mysql80, tmp_path / "binlogs")
    pipeline.captured.describe(source=f"{{user: root, port: {free_port()}}}")
    with pytest.raises(SourceConnectionError):
        backfill(request(""))

    deltalake.DeltaTable(pipeline.path).delete("n IN (0, 4)")
    assert plan_backfill(pipeline.config, request("binlogs")).problems == ()
    (outcome,) = backfill(request("binlogs")).outcomes
    assert outcome.rows_inserted == 1
    assert pipeline.rows() == {number: text for number, text in rows.items() if number != 0}, "0 changed before"
    past = backfill(request("binlogs", end=1045, into="past.orders")).rebuilt
    assert past is not None
    assert pipeline.rows(past.path) == {0: "", 1: "", 2: "", 3: "", 4: ""}

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    files = {each.name: each.read_bytes() for each in folder.iterdir()}
    deltalake.DeltaTable(pipeline.path).delete("n = 5")
    (outcome,) = backfill(request(uploaded(s3_store, files, REGION))).outcomes
    assert outcome.rows_inserted == 1
    assert pipeline.rows()[5] == ""

    cursor = destination_files.read_ledger(pipeline.captured.directory).cursor
    assert cursor is not None
    (folder / cursor.file).write_bytes(files[cursor.file][: cursor.offset - 7])
    with pytest.raises(ActRefusedError, match="put the later binlog files into the archive, or build a past state"):
        backfill(request("binlogs"))
    earlier = backfill(request("binlogs", end=1045, into="past.earlier")).rebuilt
    assert earlier is not None
    assert pipeline.rows(earlier.path) == pipeline.rows(past.path), "it needs no later files"


def kept(server: DatabaseServer, folder: Path) -> Path:
    """Copies the server's binlog files as they are."""
    base = Path(str(requested(server, "SELECT @@log_bin_basename")[0][0]))
    folder.mkdir()
    for row in requested(server, "SHOW BINARY LOGS"):
        shutil.copy(base.parent / str(row[0]), folder)
    return folder
