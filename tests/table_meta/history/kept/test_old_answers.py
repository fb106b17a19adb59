"""Tests that operators' answers about schema changes stay while the stream may need them, and that older ones are bounded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.table_meta.change.policy import PendingChange, SchemaDecisions
from sluice.cdc_engine.table_meta.history import resolutions
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.resolutions import Resolutions
from sluice.cdc_engine.table_meta.history.review_files import FOLDER, ReviewFiles
from sluice.cdc_engine.table_meta.schema import TableSchema
from tests.fix_ledgers import at

KEPT = 4


def approve(files: ReviewFiles, order_key: int) -> None:
    held = PendingChange(
        destination="shop",
        database="shop",
        table="orders",
        order_key=order_key,
        position="a:1",
        statement="ALTER TABLE orders",
        items=(),
        choices=("apply",),
    )
    files.note(held)
    pending = files.first_after("shop.orders", order_key - 1)
    assert pending is not None
    files.approve(pending, "apply")


def test_approvals_that_the_stream_never_needs_again_are_bounded(tmp_path: Path) -> None:
    files = ReviewFiles(tmp_path)
    for order_key in range(100):
        approve(files, order_key)
        files.forget_before(order_key, KEPT)
    assert len(list((tmp_path / FOLDER).iterdir())) == KEPT
    assert [key for key in range(100) if files.approved("shop", "orders", key)] == [98, 99]


@pytest.mark.found
@pytest.mark.parametrize("kind", ["approved", "held"])
def test_an_incomplete_record_is_reported_by_its_name(tmp_path: Path, kind: str) -> None:
    """Defect 83: a record that lacked a value was a KeyError, which names no file and no remedy."""
    files = ReviewFiles(tmp_path)
    approve(files, 7)
    (record,) = (tmp_path / FOLDER).glob(f"*.{kind}.json")
    record.write_text("{}")
    with pytest.raises(MetaError, match=rf"{re.escape(record.name)} cannot be read: it lacks "):
        files.first_after("shop.orders", 0)
    with pytest.raises(MetaError, match="restore this record, or remove it and decide again"):
        files.first_after("shop.orders", 0)


def test_every_approval_stays_that_the_stream_may_need_again(tmp_path: Path) -> None:
    files = ReviewFiles(tmp_path)
    for order_key in range(10):
        approve(files, order_key)
    files.forget_before(0, KEPT)
    assert all(files.approved("shop", "orders", key) for key in range(10))
    files.forget_before(5, KEPT)
    assert [key for key in range(10) if files.approved("shop", "orders", key)] == [5, 6, 7, 8, 9]


def test_only_the_newest_schemas_that_operators_gave_stay(tmp_path: Path) -> None:
    kept, schema = Resolutions(tmp_path), TableSchema(database="shop", table="orders", charset="utf8mb4", columns=())
    for number in range(20):
        kept.keep(schema, number)
        kept.forget_oldest(KEPT)
    assert len(list((tmp_path / resolutions.FOLDER).iterdir())) == KEPT
    assert [number for number in range(20) if kept.schema("shop", "orders", number, "")] == [16, 17, 18, 19]


def test_a_compaction_of_the_schema_history_forgets_old_answers(tmp_path: Path) -> None:
    forgotten = list[int]()
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, SchemaDecisions(forget=forgotten.append))
    history.compact([at(7), at(5)])
    assert forgotten == [at(5).order_key]
