"""Tests that `local_log` reads from a log what deltalake reads from it, at each version, and that it leaves other logs to deltalake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Transaction

from sluice.spark_jobs.durable_lake import LAST_CHECKPOINT, LOG
from sluice.spark_jobs.tables import local_log
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.tables.local_log import ParsedLog, parsed_log, read_local_log

APP = "sluice/shop/1/shop.orders"
ROWS = pa.table(
    {
        "id": [1, 2],
        "small": pa.array([1, None], pa.int8()),
        "text": ["a\u2028", "z" * 50],
        "amount": [Decimal("1.10"), Decimal("2.25")],
        "large": pa.array([1, 2], pa.decimal128(20, 0)),
        "at": pa.array([1, 2], pa.timestamp("us", "UTC")),
        "flag": [True, None],
    }
)
MORE_ROWS = ROWS.append_column("more", pa.array([7, 8]))


def transaction(version: int) -> CommitProperties:
    return CommitProperties(
        app_transactions=[Transaction(APP, version)], custom_metadata={"userMetadata": str(version)}
    )


def append(path: str, version: int, rows: pa.Table = ROWS) -> None:
    deltalake.write_deltalake(path, rows, mode="append", commit_properties=transaction(version))


STEPS: list[Callable[[str], object]] = [
    lambda path: append(path, 1),
    lambda path: append(path, 2, ROWS.slice(0, 1)),
    lambda path: deltalake.DeltaTable(path).delete("id = 1", commit_properties=transaction(3)),
    lambda path: deltalake.DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"}),
    lambda path: deltalake.DeltaTable(path).create_checkpoint(),
    lambda path: deltalake.DeltaTable(path).alter.add_columns([deltalake.Field("more", deltalake.schema.PrimitiveType("long"))]),
    lambda path: append(path, 4, MORE_ROWS),
    lambda path: deltalake.DeltaTable(path).optimize.compact(),
    lambda path: append(path, 5, MORE_ROWS),
    lambda path: deltalake.DeltaTable(path).create_checkpoint(),
    lambda path: deltalake.DeltaTable(path).delete(),
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "orders")
    deltalake.DeltaTable.create(made, ROWS.schema, configuration={"delta.checkpointInterval": "100"})
    return made


def read(path: str) -> local_log.LocalLog:
    files = parsed_log(path)
    assert files is not None
    found = read_local_log(files)
    assert found is not None
    return found


def bounds(table: Any) -> list[dict[str, Any]]:
    rows = pa.table(table).to_pylist()
    names = ("path", "size_bytes", "num_records", *(f"{kind}.{name}" for kind in ("min", "max") for name in COMPARED))
    return sorted(({name: row.get(name) for name in names} for row in rows), key=lambda row: str(row["path"]))


COMPARED = ("id", "small", "text", "amount", "large", "more")


def test_everything_is_as_deltalake_reads_it_at_each_version(path: str) -> None:
    files = ParsedLog(Path(path) / LOG)
    for step in STEPS:
        step(path)
        theirs = deltalake.DeltaTable(path)
        for ours in (read(path), read_local_log(files)):
            assert ours is not None
            assert ours.version() == theirs.version()
            assert ours.schema().to_json() == theirs.schema().to_json()
            assert ours.transaction_version(APP) == theirs.transaction_version(APP)
            assert ours.transaction_version("another") is None
            assert ours.protocol() == theirs.protocol()
            assert (ours.metadata().id, ours.metadata().configuration, list(ours.metadata().partition_columns)) == (
                str(theirs.metadata().id),
                theirs.metadata().configuration,
                theirs.metadata().partition_columns,
            )
            assert bounds(ours.get_add_actions(flatten=True)) == bounds(theirs.get_add_actions(flatten=True))
            assert ours.history(3) == theirs.history(3)


def test_a_replaced_commit_is_read_again(path: str) -> None:
    append(path, 1)
    files = ParsedLog(Path(path) / LOG)
    assert read_local_log(files) is not None
    commit = files.folder / f"{1:020d}.json"
    commit.unlink()
    commit.write_text(json.dumps({"txn": {"appId": APP, "version": 9}}))
    again = read_local_log(files)
    assert again is not None
    assert again.transaction_version(APP) == 9
    assert not again.get_add_actions(flatten=True).num_rows


def no_folder(path: Path) -> None:
    shutil.rmtree(path)


def a_gap(path: Path) -> None:
    (path / LOG / f"{1:020d}.json").unlink()


def parts(path: Path) -> None:
    (path / LOG / LAST_CHECKPOINT).write_text(json.dumps({"version": 2, "size": 1, "parts": 2}))


def another_format(path: Path) -> None:
    (path / LOG / LAST_CHECKPOINT).write_text(json.dumps({"version": 2, "v2Checkpoint": {"path": "x"}}))


def no_checkpoint(path: Path) -> None:
    (path / LOG / LAST_CHECKPOINT).write_text(json.dumps({"version": 2, "size": 1}))


def sidecars(path: Path) -> None:
    deltalake.DeltaTable(str(path)).create_checkpoint()
    checkpoint = path / LOG / f"{2:020d}.checkpoint.parquet"
    rows = pq.read_table(checkpoint)
    if "sidecar" in rows.column_names:
        rows = rows.drop_columns("sidecar")
    pq.write_table(rows.append_column("sidecar", pa.array([{"path": "x"}] * rows.num_rows)), checkpoint)


def no_json(path: Path) -> None:
    (path / LOG / f"{2:020d}.json").write_text("{")


def no_schema(path: Path) -> None:
    (path / LOG / f"{0:020d}.json").write_text("{}")


@pytest.mark.parametrize(
    "damage",
    [no_folder, a_gap, parts, another_format, sidecars, no_checkpoint, no_json, no_schema],
    ids=lambda each: each.__name__,
)
def test_other_logs_are_left_to_deltalake(path: str, damage: Callable[[Path], None]) -> None:
    append(path, 1)
    append(path, 2)
    damage(Path(path))
    assert read_local_log(ParsedLog(Path(path) / LOG)) is None


def test_a_log_that_is_too_large_for_python_is_read_by_deltalake(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, 1)
    monkeypatch.setattr(local_log, "BYTES_MAX", 100)
    table = DeltaTable("shop.orders", path, APP, {}, quick=True)
    assert table.refresh().applied_order_key == 1
    assert not table.is_read_quickly
    assert table.log.version() == 1


def test_a_commit_before_the_checkpoint_is_in_the_history_whatever_its_size(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the history lacked a commit, Sluice could overlook a RESTORE by another program."""
    append(path, 1)
    append(path, 2)
    deltalake.DeltaTable(path).create_checkpoint()
    monkeypatch.setattr(local_log, "BYTES_MAX", (Path(path) / LOG / f"{2:020d}.checkpoint.parquet").stat().st_size)
    long = Path(path) / LOG / f"{1:020d}.json"
    long.write_text(long.read_text() + " " * local_log.BYTES_MAX + "\n" + json.dumps({"x": " " * local_log.BYTES_MAX}))
    found = read(path)
    assert [each["version"] for each in found.history(9)] == [2, 1, 0]
    damaged = Path(path) / LOG / f"{0:020d}.json"
    damaged.write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        read(path).history(9)


def test_a_path_in_a_store_is_left_to_deltalake() -> None:
    assert parsed_log("s3://lake/orders") is None


def test_deltalake_opens_the_version_that_was_read(path: str) -> None:
    """The version that was checked is also the version that deltalake merges into. So the merge fails if another writer has committed since
    the checks.
    """
    append(path, 1)
    table = DeltaTable("shop.orders", path, APP, {}, quick=True)
    table.refresh()
    append(path, 2)
    assert (table.snapshot.version, table.log.version()) == (1, 1)
    assert (table.refresh().version, table.log.version()) == (2, 2)
    assert table.is_read_quickly
