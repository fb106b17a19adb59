"""Tests tables that the job of small tables creates: they equal tables that Spark creates, and are created completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs.tables import new_table
from sluice.spark_jobs.tables.new_table import make_table
from tests.spark.conftest import Lake
from tests.spark.staged import ARROW_TYPES, INSERT, UPDATE_AFTER, Changes, Image, Schema, SchemaChange

TIMES = Schema({"id": "bigint", "at": "timestamp_ntz"}, key=("id",))
PLAIN = Schema(
    {"größe_2": "int", **{f"c{index}": kind for index, kind in enumerate(ARROW_TYPES) if kind != "timestamp_ntz"}},
    key=("größe_2",),
)
KEYLESS = Schema({"a": "string"})
MADE = {"shop.times": TIMES, "shop.plain": PLAIN, "shop.log": KEYLESS}


def first_commit(lake: Lake, name: str) -> dict[str, Any]:
    """Returns the actions that create a table, without values that differ between tables and times."""
    lines = (Path(lake.target(name).path) / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    actions = {kind: value for line in lines for kind, value in json.loads(line).items() if kind != "commitInfo"}
    metadata = actions["metaData"]
    metadata["schemaString"] = json.loads(metadata["schemaString"])
    del metadata["id"], metadata["createdTime"], metadata["configuration"]["sluice.owner"]
    return {
        **actions,
        "protocol": {
            name: sorted(value) if isinstance(value, list) else value for name, value in actions["protocol"].items()
        },
    }


@pytest.mark.spark
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_table_that_the_job_makes_is_as_spark_makes_it(lake: Lake, vectors: bool, deletes: str) -> None:
    made = {}
    for way in ("spark", "small"):
        lake.way, names = way, {f"{name}_{way}": schema for name, schema in MADE.items()}
        reports = lake.merge(
            {name: [SchemaChange(1, schema)] for name, schema in names.items()},
            deletion_vectors=vectors, deletes=deletes,
        )  # fmt: skip
        assert {report.way for report in reports.values()} == {way}
        made[way] = [first_commit(lake, name) for name in names]
    assert made["small"] == made["spark"]


@pytest.mark.spark
def test_tables_are_made_with_their_first_rows_and_spark_continues_with_them(lake: Lake) -> None:
    text = Schema({"k": "string", "n": "int"}, key=("k",))
    tables = {"shop.times": TIMES, "shop.text": text}
    rows: dict[str, dict[str, Any]] = {"shop.times": {"id": 1}, "shop.text": {"k": "ß", "n": 1}}
    reports = lake.merge({name: [Changes(schema, [Image(INSERT, 1, rows[name])])] for name, schema in tables.items()})
    assert [(report.way, report.delta_version, report.rows_inserted) for report in reports.values()] == [
        ("small", 1, 1)
    ] * 2
    lake.way = "spark"
    lake.merge({"shop.text": [Changes(text, [Image(UPDATE_AFTER, 2, {"k": "ß", "n": 2})])]})
    assert lake.rows("shop.text", "k", "n") == [("ß", 2)]
    assert lake.rows("shop.times", "id") == [(1,)]


@pytest.mark.spark
def test_spark_creates_the_tables_that_have_more_settings(lake: Lake) -> None:
    lake.spark = lake.spark.__class__(
        remote=lake.spark.remote, options={"spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true"}
    )
    report = lake.merge({"shop.log": [Changes(KEYLESS, [Image(INSERT, 1, {"a": "x"})])]})["shop.log"]
    assert (report.way, report.rows_inserted) == ("spark", 1)
    assert "default properties for new tables" in report.reason
    assert lake.log("shop.log").metadata().configuration["delta.enableChangeDataFeed"] == "true"


UNASKED: Any = lambda: None  # noqa: E731  nobody else writes here
COLUMNS = (LakeColumn(name="id", type="bigint"),)


def test_fault_a_table_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lake" / "shop" / "orders"

    def breaks(*_: Any) -> str:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(new_table, "first_commit", breaks)
        with pytest.raises(OSError, match="No space left"):
            make_table(str(folder), COLUMNS, {}, check=UNASKED)
    assert list(folder.parent.iterdir()) == []
    folder.mkdir()  # Somebody may have left such a folder.
    assert make_table(str(folder), COLUMNS, {}, check=UNASKED)
    assert [each.name for each in folder.parent.iterdir()] == ["orders"]


def test_identity_a_table_is_not_created_over_existing_files(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "notes.txt").write_text("of somebody")
    assert not make_table(str(folder), COLUMNS, {}, check=UNASKED)
    assert not make_table("s3://lake/orders", COLUMNS, {}, check=UNASKED)
    assert [each.name for each in tmp_path.rglob("*")] == ["orders", "notes.txt"]
