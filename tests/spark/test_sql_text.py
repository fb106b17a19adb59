"""Tests how names and values are written into SQL statements, and what the fold of a batch leaves out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.batch_manifest.values import ChangesSegment, LakeColumn
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.merging import fold, merge_sql

SEGMENT = ChangesSegment(
    file=Path("/staging/shop.orders.0.parquet"),
    size_bytes=1,
    rows=3,
    inserts=3,
    updates=0,
    deletes=0,
    key_changes=0,
    unique_keys=True,
    first_order_key=10,
    last_order_key=12,
    first_commit_time_us=1,
    last_commit_time_us=1,
    key=("id",),
    key_min=(1,),
    key_max=(9,),
    columns=(LakeColumn(name="id", type="bigint", nullable=False), LakeColumn(name="name", type="string")),
)


def test_a_backtick_cannot_end_an_identifier() -> None:
    assert sql_text.identifier("a`; DROP TABLE x; --") == "`a``; DROP TABLE x; --`"


@pytest.mark.parametrize(
    ("value", "type_name", "literal"),
    [
        (-(2**63), "bigint", "-9223372036854775808L"),
        (5, "smallint", "5S"),
        ("it's \\ \n", "string", r"'it\'s \\ \u000a'"),
        ("2024-02-29", "date", "DATE'2024-02-29'"),
        ("18446744073709551615", "decimal(20,0)", "CAST('18446744073709551615' AS decimal(20,0))"),
        ("five", "bigint", None),
        (True, "int", None),
        ("NaN", "decimal(20,0)", None),
        ("tomorrow", "date", None),
        (None, "bigint", None),
        (1.5, "double", None),
    ],
)
def test_a_bound_is_a_literal_of_its_column_or_left_out(value: object, type_name: str, literal: str | None) -> None:
    assert sql_text.typed_literal(value, type_name) == literal


def test_unique_keys_need_no_fold() -> None:
    assert fold.last_images("v", SEGMENT, -1) == "SELECT * FROM `v`"


def test_key_changes_are_folded_even_where_the_manifest_says_unique() -> None:
    assert "row_number()" in fold.last_images("v", dataclasses.replace(SEGMENT, key_changes=1), -1)


def test_only_what_the_table_lacks_is_read() -> None:
    assert fold.images("v", SEGMENT, 9) == "SELECT * FROM `v`"
    assert fold.images("v", SEGMENT, 10) == "SELECT * FROM `v` WHERE _sluice_order_key > 10L"


def test_bounds_of_a_nullable_key_let_null_through() -> None:
    nullable = dataclasses.replace(SEGMENT, columns=(LakeColumn(name="id", type="bigint"),))
    assert merge_sql.condition(SEGMENT) == "t.`id` = s.`id` AND t.`id` >= 1L AND t.`id` <= 9L"
    assert merge_sql.condition(nullable) == "t.`id` <=> s.`id` AND (t.`id` IS NULL OR (t.`id` >= 1L AND t.`id` <= 9L))"
