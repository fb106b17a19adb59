"""Tests the reasons against Iceberg metadata by Delta's UniForm that docs/readers.md gives. One of these tests fails once a reason is no
longer true.
"""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from sluice.spark_jobs.session import LakeSession, open_sessions
from tests.spark.conftest import Lake

UNIFORM = (
    "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false', 'delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV2' = 'true', "
    "'delta.universalFormat.enabledFormats' = 'iceberg')"
)
NO_VECTORS = {"spark.databricks.delta.properties.defaults.enableDeletionVectors": "false"}


def make(session: LakeSession, table: str) -> None:
    session.configure(NO_VECTORS)
    session.spark.sql(f"CREATE TABLE {table} (id BIGINT) USING delta {UNIFORM}").collect()


@pytest.mark.spark
def test_a_write_by_path_makes_no_iceberg_metadata_and_deltalake_cannot_write_the_table(lake: Lake) -> None:
    path = lake.path("t")
    with open_sessions(lake.spark, 1) as (session,):
        make(session, f"delta.`{path}`")
        session.spark.sql(f"INSERT INTO delta.`{path}` VALUES (1)").collect()
    assert not list(Path(path).rglob("*metadata.json"))
    with pytest.raises(Exception, match="IcebergCompatV2"):
        deltalake.write_deltalake(path, pa.table({"id": [2]}), mode="append")


@pytest.mark.spark
def test_a_write_by_name_needs_the_module_that_cannot_be_downloaded(lake: Lake) -> None:
    with open_sessions(lake.spark, 1) as (session,):
        make(session, "uniform_by_name")
        try:
            with pytest.raises(Exception, match="DELTA_MISSING_ICEBERG_CLASS"):
                session.spark.sql("INSERT INTO uniform_by_name VALUES (1)").collect()
        finally:
            session.spark.sql("DROP TABLE uniform_by_name")
