"""Tests that a staged directory that differs from its manifest is refused with one sentence, before Spark is called."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.values import ChangesSegment, SchemaSegment, TruncateSegment
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import StagedBatchError
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.staged import INSERT, LEDGER_ID, Changes, Image, Schema, SchemaChange, Truncate, stage

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
NOWHERE = SparkSettings(remote="sc://127.0.0.1:1")


def staged(folder: Path) -> Path:
    images = [Image(INSERT, 10 + key, {"id": key, "name": "x"}) for key in range(3)]
    return stage(folder, {"shop.orders": [SchemaChange(9, ORDERS), Changes(ORDERS, images), Truncate(20)]})


def edit_manifest(directory: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "manifest.json"
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def changes_of(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = record["tables"][0]["segments"][1]
    return found


def test_a_whole_batch_is_read(tmp_path: Path) -> None:
    batch = read_staged_batch(staged(tmp_path))
    schema, changes, truncate = batch.tables[0].segments
    assert isinstance(schema, SchemaSegment)
    assert isinstance(changes, ChangesSegment)
    assert isinstance(truncate, TruncateSegment)
    assert (changes.rows, changes.unique_keys, changes.key_min, changes.key_max) == (3, True, (0,), (2,))
    assert batch.app_id(batch.tables[0]) == f"sluice/shop/{LEDGER_ID}/shop.orders"


def test_a_directory_without_a_manifest_is_no_batch(tmp_path: Path) -> None:
    directory = staged(tmp_path)
    (directory / "manifest.json").unlink()
    with pytest.raises(StagedBatchError, match=r"manifest\.json does not exist"):
        read_staged_batch(directory)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00\xff\x01",
        b"[]",
        b'{"format": 4}',
        b'{"format": 4, "tables": [3]}',
        b'{"format": 4, "tables": {"a": 1}}',
    ],
)
def test_a_garbage_manifest(tmp_path: Path, garbage: bytes) -> None:
    directory = staged(tmp_path)
    (directory / "manifest.json").write_bytes(garbage)
    with pytest.raises(StagedBatchError, match=r"manifest\.json is not a valid manifest of a batch"):
        read_staged_batch(directory)


def test_another_format_is_named(tmp_path: Path) -> None:
    directory = staged(tmp_path)
    edit_manifest(directory, lambda record: record.update(format=7))
    with pytest.raises(StagedBatchError, match="has format 7"):
        read_staged_batch(directory)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a key that is no column": (lambda record: changes_of(record).update(key=["nobody"]), "nobody"),
    "an unknown segment": (lambda record: changes_of(record).update(kind="magic"), "magic"),
    "segments out of order": (lambda record: changes_of(record).update(last_order_key=99), "stream order"),
    "a table twice": (lambda record: record["tables"].append(record["tables"][0]), "lists a table twice"),
    "other rows": (lambda record: changes_of(record).update(rows=4), "has 3 rows instead of the 4 rows"),
    "another size": (lambda record: changes_of(record).update(size_bytes=1), "instead of the 1 bytes"),
    "another file": (lambda record: changes_of(record).update(file="gone.parquet"), "does not exist"),
    "a column that is not in the file": (
        lambda record: changes_of(record)["columns"].append({"name": "more", "type": "int"}),
        "lacks the columns more",
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_manifest_that_does_not_fit_its_files(tmp_path: Path, what: str) -> None:
    directory = staged(tmp_path)
    edit, sentence = EDITS[what]
    edit_manifest(directory, edit)
    with pytest.raises(StagedBatchError, match=sentence):
        merge_batch(read_staged_batch(directory), {"shop.orders": TableTarget(path=str(tmp_path / "t"))}, NOWHERE)
    assert not (tmp_path / "t").exists()


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    directory = staged(tmp_path)
    file = directory / "shop.orders.1.parquet"
    file.write_bytes(b"\x00" * file.stat().st_size)
    with pytest.raises(StagedBatchError, match="is not a Parquet file") as caught:
        read_staged_batch(directory)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301  our own bytes


def test_a_table_that_is_to_be_merged_and_is_not_in_the_batch_is_named(tmp_path: Path) -> None:
    targets = {"shop.items": TableTarget(path=str(tmp_path / "t"))}
    with pytest.raises(StagedBatchError, match=r"no changes of shop\.items, although the run should merge"):
        merge_batch(read_staged_batch(staged(tmp_path)), targets, NOWHERE)


def test_fault_a_table_that_has_stopped_is_left_out_of_its_batch(tmp_path: Path) -> None:
    assert merge_batch(read_staged_batch(staged(tmp_path)), {}, NOWHERE) == []
