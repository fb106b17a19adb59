"""Tests whether Spark or a small merge merges a table, with an example for each reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.values import (
    Alteration,
    AlterationKind,
    ChangesSegment,
    LakeColumn,
    SchemaSegment,
    TruncateSegment,
)
from sluice.spark_jobs.targets.ways import BYTES_MAX, CONFIGURED, ROWS_MAX, MergeChoice, MergeFacts, choose

ID, NOTE = LakeColumn(name="id", type="bigint", nullable=False), LakeColumn(name="note", type="string")
CHANGES = ChangesSegment(
    file=Path("f"), size_bytes=1, rows=1, inserts=1, updates=0, deletes=0, key_changes=0, unique_keys=True, first_order_key=1,
    last_order_key=1, first_commit_time_us=1, last_commit_time_us=1, key=("id",), key_min=(1,), key_max=(1,), columns=(ID, NOTE),
)  # fmt: skip
FACTS = MergeFacts(
    exists=True,
    writer_version=7,
    features=frozenset({"deletionVectors", "columnMapping", "timestampNtz"}),
    partitioned=False,
    mapping="name",
    alters=False,
    columns=(("id", "bigint"), ("note", "string"), ("größe_2", "decimal(10,2)")),
    segments=(CHANGES,),
    rows=5,
    bytes=1000,
)


def schema(**changed: Any) -> SchemaSegment:
    return SchemaSegment(order_key=1, commit_time_us=1, key=("id",), columns=(ID, NOTE), **changed)


def keyed(column: LakeColumn) -> ChangesSegment:
    return dataclasses.replace(CHANGES, columns=(column, NOTE))


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        dataclasses.replace(FACTS, writer_version=2, features=frozenset()),
        dataclasses.replace(FACTS, segments=(schema(), CHANGES)),
        dataclasses.replace(FACTS, segments=()),
        dataclasses.replace(FACTS, features=FACTS.features | {"variantType"}),
        dataclasses.replace(FACTS, exists=False, writer_version=0, features=frozenset()),
        dataclasses.replace(FACTS, rows=ROWS_MAX, bytes=BYTES_MAX),
        dataclasses.replace(FACTS, segments=(dataclasses.replace(CHANGES, partial=True, moves=2),)),
    ],
)
def test_what_is_small_and_plain_goes_to_the_job(facts: MergeFacts) -> None:
    assert choose("auto", facts).way == "small"
    assert choose("spark", facts) == MergeChoice(way="spark", reason=CONFIGURED)


@pytest.mark.parametrize(
    ("reason", "changed"),
    [
        ("is new", {"exists": False, "makes": False}),
        ("has a constraint", {"ruled": ("note",)}),
        ("columns or properties", {"alters": True}),
        ("writer version 5", {"writer_version": 5}),
        ("typeWidening", {"features": FACTS.features | {"typeWidening"}}),
        ("mapped by id", {"mapping": "id"}),
        ("partitioned", {"partitioned": True}),
        ("'a.b'", {"columns": (("a.b", "int"),)}),
        ("'a b'", {"columns": (("a b", "int"),)}),
        ("is a struct", {"columns": (("x", "struct<a:int>"),)}),
        ("truncated", {"segments": (TruncateSegment(order_key=1, commit_time_us=1),)}),
        ("altered", {"segments": (schema(alterations=(Alteration(kind=AlterationKind.DROP, column="x"),)), CHANGES)}),
        ("altered", {"segments": (schema(fills=(("x", "7"),)),)}),
        ("may be NULL", {"segments": (keyed(LakeColumn(name="id", type="bigint")),)}),
        ("is a double", {"segments": (keyed(LakeColumn(name="id", type="double", nullable=False)),)}),
    ],
)
def test_tables_that_deltalake_cannot_merge_go_to_spark_whatever_was_requested(
    reason: str, changed: dict[str, Any]
) -> None:
    facts = dataclasses.replace(FACTS, **changed)
    for choice in (choose("auto", facts), choose("small", facts)):
        assert choice.way == "spark"
        assert reason in choice.reason


@pytest.mark.parametrize("changed", [{"rows": ROWS_MAX + 1}, {"bytes": BYTES_MAX + 1}])
def test_large_tables_go_to_spark_unless_the_job_was_requested(changed: dict[str, Any]) -> None:
    facts = dataclasses.replace(FACTS, **changed)
    assert choose("auto", facts).way == "spark"
    assert choose("small", facts) == MergeChoice(way="small", reason=CONFIGURED)
