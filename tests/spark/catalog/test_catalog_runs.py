"""Tests that merge runs and snapshot runs register new Delta tables in a catalog, and keep a view of each table current."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.destination_files.catalog_record import RECORD
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import spark_settings
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.run import snapshot_run
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.orchestration.run.spark_publish import spark_publish
from sluice.spark_jobs.session import open_sessions
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.catalog, pytest.mark.servers, pytest.mark.spark]


def test_merges_and_snapshots_register_the_tables_that_they_made_and_keep_their_views(
    tmp_path: Path, mysql80: DatabaseServer, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    captured, database = pipeline.captured, pipeline.captured.database
    file, record = captured.conf / "sluice.yaml", captured.directory / RECORD
    settings = {"views": "{table}_v"}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "catalog": settings}))
    old = (f"CREATE TABLE {database}.old (id int PRIMARY KEY)", f"INSERT INTO {database}.old VALUES (1), (2)")
    captured.run("SET sql_log_bin = 0", *old)

    def count(name: str) -> int:
        with open_sessions(spark_settings(pipeline.config, "shop"), 1) as (session,):
            return int(session.spark.sql(f"SELECT count(*) FROM {database}.{name}").collect()[0][0])

    monkeypatch.setattr(snapshot_run, "WAIT_SECONDS", 0.0)
    ports = Ports(
        host=lambda: None,  # type: ignore[arg-type,return-value]
        files=lambda: destination_files,
        merge=spark_merge,
        publish=spark_publish,
    )
    job, records = snapshot_run.snapshot_job(pipeline.config, "shop", ports), SnapshotRecords(captured.directory)

    with running(captured) as engine, dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        pipeline.merge(engine)
        assert (count("numbers"), count("numbers_v")) == (1, 1)
        snapshot.start(captured.directory, [f"{database}.old"])

        def is_published() -> bool:
            pipeline.merge_next(engine)
            assert job.execute_in_process(instance=instance).success
            return not any(each.has_work for each in records.all())

        wait_for("the rows are published", is_published, 120)
        assert (count("old"), count("old_v")) == (2, 2), "the snapshot's run registered it"

        captured.run(f"ALTER TABLE {database}.numbers MODIFY n bigint")
        pipeline.merge(engine)
        assert count("numbers_v WHERE typeof(n) = 'bigint'") == 2, "the view has the new type"
        before = record.read_text()
        pipeline.merge(engine)
        assert record.read_text() == before, "nothing changed, so nothing was asked"
