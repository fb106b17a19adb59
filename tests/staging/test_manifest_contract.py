"""One manifest, two descriptions: what staging writes of a batch is what a run reads of it, field by field.

`cdc_engine.staging.manifest` writes, `spark_jobs.staged_batch` reads, and neither may import the other.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_engine.contracts import Alteration, AlterationKind, Cascade
from cdc_engine.staging import manifest as written
from spark_jobs import staged_batch as read

# class of the manifest → its twin, and the fields that a run does without
TWINS: dict[type, tuple[type, set[str]]] = {
    written.Manifest: (
        read.StagedBatch,
        # of the batch as a whole, for people; `quarantine` has a reader of its own; `format` is checked at the door
        {"format", "rows", "changes", "bytes", "staged_at_us", "first_commit_time_us"}
        | {"last_commit_time_us", "quarantine"},
    ),
    written.StagedTable: (read.StagedTable, set()),
    written.ChangesSegment: (read.ChangesSegment, {"kind", "version"}),
    written.TruncateSegment: (read.TruncateSegment, {"kind"}),
    written.SchemaSegment: (read.SchemaSegment, {"kind", "version"}),
    written.StagedColumn: (read.Column, {"mysql_type"}),
    written.CascadeEvents: (read.CascadeEvents, {"rows"}),
    Cascade: (read.Cascade, {"captured", "dated"}),
    Alteration: (read.Alteration, {"old_type", "new_type"}),
}
# a run's word → the manifest's; "" for what the manifest does not say
RENAMED = {
    "path": "file",
    "directory": "",
    "backfill": "",
    "again": "",
    "derived": "",
    "stored": "",
}

NAMES = st.text("abcä_`\"' .Ω", min_size=1, max_size=6).filter(
    lambda name: name.strip(". ") == name and "." not in name
)
COUNTS = st.integers(0, 2**62)


def names_of(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", TWINS, ids=lambda kind: kind.__name__)
def test_each_field_is_read_or_is_known_not_to_be(kind: type) -> None:
    twin, unread = TWINS[kind]
    of_the_manifest = {RENAMED.get(name, name) for name in names_of(twin)} - {""}
    assert of_the_manifest == names_of(kind) - unread
    assert unread <= names_of(kind)


def test_the_formats_are_one() -> None:
    assert (written.FORMAT, written.MANIFEST_FILE) == (read.FORMAT, read.MANIFEST)


@st.composite
def columns(draw: st.DrawFn) -> tuple[written.StagedColumn, ...]:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    kinds = st.sampled_from(["bigint", "string", "decimal(20,0)", "binary"])
    return tuple(
        written.StagedColumn(name=name, type=draw(kinds), nullable=draw(st.booleans()), mysql_type="x")
        for name in names
    )


@st.composite
def changes(draw: st.DrawFn, after: int) -> written.ChangesSegment:
    of = draw(columns())
    key = tuple(column.name for column in of[: draw(st.integers(0, len(of)))])
    first = after + draw(st.integers(1, 9))
    bounds = st.one_of(st.none(), st.integers(), NAMES)
    partial = draw(st.booleans())
    counts = {name: draw(COUNTS) for name in ("inserts", "updates", "deletes", "key_changes")}
    return written.ChangesSegment(
        file=f"f.{first}.parquet",
        size_bytes=0,
        version="v",
        rows=draw(st.integers(0, 3)),
        **counts,  # type: ignore[arg-type]  # counts alone
        unique_keys=draw(st.booleans()),
        first_order_key=first,
        last_order_key=first + draw(st.integers(0, 9)),
        first_commit_time_us=draw(COUNTS),
        last_commit_time_us=draw(COUNTS),
        key=key,
        key_min=tuple(draw(bounds) for _ in key),
        key_max=tuple(draw(bounds) for _ in key),
        columns=of,
        partial=partial,
        moves=draw(COUNTS) if partial else 0,
    )


@st.composite
def alterations(draw: st.DrawFn) -> dict[str, str]:
    texts = {name: draw(st.one_of(st.just(""), NAMES)) for name in ("column", "new_name", "old_type", "new_type")}
    kind, plan = draw(st.sampled_from(AlterationKind)), draw(st.sampled_from(["apply", "keep", "new_column"]))
    return written.manifest_alteration(Alteration(kind=kind, plan=plan, **texts))


@st.composite
def segments(draw: st.DrawFn, *, renames: bool) -> tuple[written.Segment, ...]:
    """`renames`: tables got other names, and nothing else is in the batch."""
    made: list[written.Segment] = []
    at = draw(st.integers(1, 2**60))
    for kind in draw(st.lists(st.sampled_from(["truncate", "schema", *(() if renames else ["changes"])]), max_size=4)):
        if kind == "changes":
            segment = draw(changes(at))
            made.append(segment)
            at = segment.last_order_key
            continue
        at += draw(st.integers(0, 5))
        if kind == "truncate":
            made.append(written.TruncateSegment(order_key=at, commit_time_us=draw(COUNTS)))
            continue
        of = draw(columns())
        made.append(
            written.SchemaSegment(
                order_key=at,
                commit_time_us=draw(COUNTS),
                version="v",
                key=tuple(column.name for column in of[:1]),
                columns=of,
                fills=tuple(draw(st.lists(st.tuples(NAMES, NAMES), max_size=2))),
                alterations=tuple(draw(st.lists(alterations(), max_size=2))),
                renamed_from=draw(NAMES) if renames else "",
            )
        )
    return tuple(made)


@st.composite
def cascade_events(draw: st.DrawFn) -> written.CascadeEvents:
    pairs, lists = st.tuples(NAMES, NAMES), st.lists(NAMES, max_size=2).map(tuple)
    words = st.sampled_from(["", "CASCADE", "SET NULL"])
    cascades = st.builds(
        Cascade,
        name=NAMES,
        parent=pairs,
        child=pairs,
        columns=lists,
        referenced=lists,
        on_delete=words,
        on_update=words,
        doubt=st.one_of(st.just(""), NAMES),
        captured=st.booleans(),
        key=lists,
        generated=st.booleans(),
        unlike=st.booleans(),
    )
    return written.CascadeEvents(
        parent=draw(pairs),
        referenced=draw(lists),
        file="cascade.0.parquet",
        rows=draw(COUNTS),
        cascades=tuple(draw(st.lists(cascades, max_size=2))),
        live=tuple(draw(st.lists(pairs, max_size=2))),
    )


@st.composite
def manifests(draw: st.DrawFn) -> written.Manifest:
    tables = draw(st.lists(st.tuples(NAMES, NAMES), max_size=3, unique=True))
    renames = draw(st.booleans())
    return written.Manifest(
        destination=draw(NAMES),
        ledger_id=draw(NAMES),
        epoch=draw(COUNTS),
        delivery=draw(COUNTS),
        start={"file": "binlog.1", "offset": draw(COUNTS)},
        end={"file": "binlog.1", "offset": draw(COUNTS)},
        end_order_key=draw(COUNTS),
        rows=draw(COUNTS),
        changes=draw(COUNTS),
        bytes=draw(COUNTS),
        staged_at_us=draw(COUNTS),
        first_commit_time_us=draw(COUNTS),
        last_commit_time_us=draw(COUNTS),
        tables=tuple(
            written.StagedTable(
                database=database,
                table=table,
                segments=tuple(_in_file(segment, number) for segment in draw(segments(renames=renames))),
                places=draw(st.sampled_from(["", "places.0.i64"])),
            )
            for number, (database, table) in enumerate(tables)
        ),
        cascades=tuple(draw(st.lists(cascade_events(), max_size=2))),
    )


def _in_file(segment: written.Segment, table: int) -> written.Segment:
    if isinstance(segment, written.ChangesSegment):
        return dataclasses.replace(segment, file=f"{table}.{segment.file}")
    return segment


def on_disk(given_manifest: written.Manifest, folder: Path) -> written.Manifest:
    """The manifest with its files, whose sizes it then has."""
    for name in ("cascade.0.parquet", "places.0.i64"):
        (folder / name).write_bytes(b"")
    tables = []
    for table in given_manifest.tables:
        segments_of = [
            _with_file(each, folder) if isinstance(each, written.ChangesSegment) else each for each in table.segments
        ]
        tables.append(dataclasses.replace(table, segments=tuple(segments_of)))
    whole = dataclasses.replace(given_manifest, tables=tuple(tables))
    (folder / written.MANIFEST_FILE).write_text(json.dumps(whole.to_json(), ensure_ascii=False))
    return whole


def _with_file(segment: written.ChangesSegment, folder: Path) -> written.ChangesSegment:
    twin = read.ChangesSegment(
        **{
            name: getattr(segment, name)
            for name in names_of(read.ChangesSegment) - {"path", "columns", "again", "derived", "stored"}
        },
        path=folder,
        columns=tuple(read.Column(name=each.name, type=each.type) for each in segment.columns),
    )
    path = folder / segment.file
    pq.write_table(pa.table({name: pa.nulls(segment.rows, pa.int8()) for name in twin.staged_types}), path)
    return dataclasses.replace(segment, size_bytes=path.stat().st_size)


def shown(value: Any, folder: Path) -> Any:
    """A value of either side in one form: twins by their shared fields, names joined and in lower case where a run does so."""
    kind = next((each for each, (twin, _) in TWINS.items() if type(value) in {each, twin}), None)
    if kind is not None:
        unread = TWINS[kind][1]
        back = {ours: theirs for theirs, ours in RENAMED.items()}
        own = names_of(kind) - unread
        return {name: shown(_field(value, name, back), folder) for name in own}
    if isinstance(value, Path):
        return value.relative_to(folder).as_posix()
    if isinstance(value, (tuple, list)):
        return [shown(each, folder) for each in value]
    return value


def _field(value: Any, name: str, back: dict[str, str]) -> Any:
    return getattr(value, name) if hasattr(value, name) else getattr(value, back[name])


def as_a_run_says(value: written.CascadeEvents) -> read.CascadeEvents:
    """The one place where a run has other words: names joined, columns in lower case."""
    cascades = tuple(
        read.Cascade(
            name=each.name,
            parent=".".join(each.parent),
            child=".".join(each.child),
            columns=_lowered(each.columns),
            referenced=_lowered(each.referenced),
            on_delete=each.on_delete,
            on_update=each.on_update,
            doubt=each.doubt,
            key=_lowered(each.key),
            generated=each.generated,
            unlike=each.unlike,
        )
        for each in value.cascades
    )
    live = frozenset(".".join(name) for name in value.live)
    return read.CascadeEvents(
        parent=".".join(value.parent),
        path=Path(value.file),
        cascades=cascades,
        live=live,
        referenced=_lowered(value.referenced),
    )


def _lowered(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str.lower, names))


@settings(max_examples=60, deadline=None)
@given(manifests())
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, given_manifest: written.Manifest
) -> None:
    folder = tmp_path_factory.mktemp("manifest")
    whole = on_disk(given_manifest, folder)
    batch = read.read_staged_batch(folder)
    assert written.Manifest.from_json(json.loads((folder / written.MANIFEST_FILE).read_text())) == whole
    for name in ("destination", "ledger_id", "epoch", "delivery", "start", "end"):
        assert getattr(batch, name) == getattr(whole, name)
    assert [dataclasses.replace(each, path=Path(each.path.name)) for each in batch.cascades] == [
        as_a_run_says(each) for each in whole.cascades
    ]
    for theirs, ours in zip(batch.tables, whole.tables, strict=True):
        expected = shown(dataclasses.replace(ours, segments=()), folder)
        assert shown(dataclasses.replace(theirs, segments=()), folder) == {**expected, "places": ours.places or None}
        for segment, staged in zip(theirs.segments, ours.segments, strict=True):
            assert type(segment).__name__ == type(staged).__name__
            assert shown(segment, folder) == as_read(shown(staged, folder))


def as_read(record: dict[str, Any]) -> dict[str, Any]:
    """Alterations stand in the manifest as records without what says nothing."""
    if "alterations" not in record:
        return record
    empty = {"column": "", "new_name": "", "plan": ""}
    kept = [
        {name: value for name, value in {**empty, **each}.items() if name in {*empty, "kind"}}
        for each in record["alterations"]
    ]
    return {**record, "alterations": kept}
