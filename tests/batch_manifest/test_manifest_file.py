"""Tests that a manifest is read as it was written, and that everything else is refused with the reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.file import FORMAT, ManifestError, from_record, manifest_json, read_manifest_json, to_record
from sluice.batch_manifest.values import (
    Alteration,
    AlterationKind,
    Cascade,
    CascadeEvents,
    ChangesSegment,
    LakeColumn,
    Manifest,
    SchemaSegment,
    StagedQuarantine,
    StagedTable,
    TruncateSegment,
)

# The names contain ".", because names of files may contain it. They do not contain "/", because no name of a file contains it.
FILES = st.text("abcä_`\"' .Ω", min_size=1, max_size=6).filter(lambda name: bool(name.strip("."))).map(Path)
POSITIONS = st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=2)


def values(kind: type[Any], /, **fields: Any) -> st.SearchStrategy[Any]:
    """Draws values of a class. Fields that are not given get any value of their type."""
    return st.builds(kind, **{**{field.name: ... for field in dataclasses.fields(kind)}, **fields})


SEGMENTS = st.one_of(
    values(ChangesSegment, file=FILES), values(TruncateSegment), values(SchemaSegment, alterations=st.just(()))
)
ALTERED = values(
    SchemaSegment, alterations=st.lists(values(Alteration, kind=st.sampled_from(AlterationKind)), max_size=2).map(tuple)
)
MANIFESTS = values(
    Manifest,
    start=POSITIONS,
    end=POSITIONS,
    tables=st.lists(
        values(
            StagedTable,
            segments=st.lists(st.one_of(SEGMENTS, ALTERED), max_size=3).map(tuple),
            positions=st.one_of(st.none(), FILES),
        ),
        max_size=2,
    ).map(tuple),
    quarantine=st.one_of(st.none(), values(StagedQuarantine, file=FILES)),
    cascades=st.lists(
        values(CascadeEvents, file=FILES, cascades=st.lists(values(Cascade), max_size=2).map(tuple)), max_size=2
    ).map(tuple),
)


def changes(**fields: Any) -> ChangesSegment:
    counts = dict.fromkeys(("rows", "inserts", "updates", "deletes", "key_changes"), 1)
    keys = {"first_order_key": 1, "last_order_key": 2, "first_commit_time_us": 3, "last_commit_time_us": 4}
    return ChangesSegment(
        **{
            **counts,
            **keys,
            "file": Path("a.parquet"),
            "size_bytes": 5,
            "unique_keys": True,
            "key": ("id",),
            "key_min": (1,),
            "key_max": ("ä",),
            "columns": (LakeColumn(name="id", type="int"),),
            **fields,
        }
    )


def manifest(*tables: StagedTable, **fields: Any) -> Manifest:
    return Manifest(destination="shop", ledger_id="l", epoch=1, delivery=2, start={}, end={}, tables=tables, **fields)


TABLE = StagedTable(
    database="shop", table="orders", positions=Path("positions.0.i64"), segments=(changes(), changes(file=Path("b")))
)


@settings(max_examples=200, deadline=None)
@given(MANIFESTS)
def test_a_manifest_that_is_written_is_read_as_the_same_values(given_manifest: Manifest) -> None:
    assert read_manifest_json(manifest_json(given_manifest)) == given_manifest


@settings(max_examples=100, deadline=None)
@given(st.one_of(SEGMENTS, ALTERED))
def test_a_segment_that_is_written_alone_is_read_as_the_same_values(segment: Any) -> None:
    record = json.loads(json.dumps(to_record(segment)))
    assert from_record(type(segment), record, Path()) == segment


def test_a_run_gets_the_whole_paths_of_the_files() -> None:
    events = CascadeEvents(
        parent=("shop", "c"), referenced=("id",), file=Path("cascade.0.parquet"), rows=1, cascades=()
    )
    quarantine = StagedQuarantine(file=Path("quarantine.parquet"), size_bytes=1, rows=1, last_order_key=1)
    found = read_manifest_json(
        manifest_json(manifest(TABLE, cascades=(events,), quarantine=quarantine)), Path("/batch")
    )
    assert [segment.file for segment in found.tables[0].changes] == [Path("/batch/a.parquet"), Path("/batch/b")]
    assert found.tables[0].positions == Path("/batch/positions.0.i64")
    assert found.cascades[0].file == Path("/batch/cascade.0.parquet")
    assert found.quarantine is not None
    assert found.quarantine.file == Path("/batch/quarantine.parquet")


def test_a_file_outside_the_directory_cannot_be_named() -> None:
    record = json.loads(manifest_json(manifest(TABLE)))
    record["tables"][0]["segments"][0]["file"] = "../../etc/passwd"
    found = read_manifest_json(json.dumps(record), Path("/batch"))
    assert found.tables[0].changes[0].file == Path("/batch/passwd")


@pytest.mark.parametrize("version", [None, 2, FORMAT + 1, str(FORMAT)])
def test_another_format_is_refused_by_its_version(version: Any) -> None:
    record = {**json.loads(manifest_json(manifest())), "format": version}
    with pytest.raises(
        ManifestError, match=f"the manifest has format {version!r}, and this version of Sluice reads format {FORMAT}"
    ):
        read_manifest_json(json.dumps(record))


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an unknown field": (lambda record: record.update(places=[]), "Manifest has no places"),
    "a missing field": (lambda record: record.pop("epoch"), "epoch"),
    "a text that is to be a number": (lambda record: record.update(epoch="1"), "'1' is not int"),
    "a number that is to be true or false": (
        lambda record: record["tables"][0]["segments"][0].update(unique_keys=1),
        "1 is not bool",
    ),
    "no list of tables": (lambda record: record.update(tables={}), "{} is not tuple"),
    "no table": (lambda record: record.update(tables=[3]), "3 is not a StagedTable"),
    "an unknown segment": (
        lambda record: record["tables"][0]["segments"][0].update(kind="magic"),
        "unknown kind of segment 'magic'",
    ),
    "a segment without its kind": (lambda record: record["tables"][0]["segments"][0].pop("kind"), "kind"),
    "a bound of another type": (
        lambda record: record["tables"][0]["segments"][0].update(key_min=[1.5]),
        "1.5 is not int",
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_what_is_not_a_manifest_is_refused_with_the_reason(what: str) -> None:
    edit, reason = EDITS[what]
    record = json.loads(manifest_json(manifest(TABLE)))
    edit(record)
    with pytest.raises(ManifestError) as caught:
        read_manifest_json(json.dumps(record))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"), [(b"", "the manifest is not JSON"), (b"\xff", "the manifest is not JSON"), (b"[]", "JSON list")]
)
def test_what_is_not_a_json_object_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        read_manifest_json(text)
