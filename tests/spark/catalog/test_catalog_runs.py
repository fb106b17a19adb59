"""Runs register the tables that they make."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import spark_settings
from sluice.spark_jobs.session import open_sessions
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline

pytestmark = pytest.mark.catalog


@pytest.mark.servers
@pytest.mark.spark
def test_a_merge_registers_the_tables_that_it_made(
    tmp_path: Path, mysql80: DatabaseServer, spark_server: SparkConnectServer
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    file = pipeline.captured.conf / "sluice.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "catalog": {"kind": "spark"}}))
    with running(pipeline.captured) as engine:
        pipeline.merge(engine)
    with open_sessions(spark_settings(pipeline.config, "shop"), 1) as (session,):
        assert session.spark.sql(f"SELECT count(*) FROM {pipeline.captured.database}.numbers").collect()[0][0] == 1
