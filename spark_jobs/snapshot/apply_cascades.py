"""Applies the changes of foreign keys to the rows of a snapshot. `publish` calls it before it makes the table.

The changes of referenced values (`buffered_cascades`) are replayed over the rows that were read and the buffered images, in the order of
the stream (`cascades.play`). The result is one more file of buffered images, so the rest of the publication knows nothing of foreign keys.

A chunk is read at an unknown moment, but the rule does not need it. The state of a row with buffered images is known exactly after its last
image, and later changes are replayed on that state. A row without images was changed by foreign keys only since the reading began. A change
that the row as read does not contain is replayed. A change that it contains has no effect, because the row does not have the old value any
more. There is one exception: a later ON UPDATE CASCADE gave the old value to the row again. Then the order is unknown, and the rows are
read again (`given_again`). The rows of a table without a key were read at a known position, so there is no such exception.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.cascades.play import (
    CASCADE,
    ChangeOrder,
    Derived,
    Event,
    Image,
    Play,
    Values,
    coarse_values,
    without_advice,
)
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.snapshot.affected_rows import AffectedRows
from sluice.spark_jobs.snapshot.buffered_cascades import buffered_events, write_rows
from sluice.spark_jobs.snapshot.buffering import DERIVED_SUFFIX, KEY_DIGITS
from sluice.spark_jobs.snapshot.publication import OURS, CascadesUnseenError, Publication, is_partial
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW

ROW_BASE = 1 << 40  # Derived images come after all images of their transaction that they follow.
OURS_TYPES = {
    OPERATION: pa.int8(),
    ORDER_KEY: pa.int64(),
    COMMIT_TIME: pa.timestamp("us", "UTC"),
    ROW: pa.int64(),
}


def apply_cascades(given: Publication, label: int, fence: Fence) -> None:
    """Adds the images of the foreign keys' changes up to the order key `label` to the buffered images, and removes those of an earlier
    attempt.

    Raises CascadesUnseenError if the rows must be read again, OSError, StoreError.
    """
    _forget_derived(given.changes)
    name = given.owner.table
    events = buffered_events(given.cascades, name, given.rows_key, label)
    if not events:
        return
    _refuse(given, [event for _, event in events])
    derived = _played(AffectedRows(given, [event for _, event in events]), name, events)
    if derived:
        fence.check(name)
        write_rows(_images(given, derived), given.changes, f"{label:0{KEY_DIGITS}d}{DERIVED_SUFFIX}")


def given_again(events: Sequence[Event]) -> str:
    """Returns why a row that was read may have an old value although it contains the change, or an empty text. Each event has one foreign
    key.
    """
    every = {cascade.columns for event in events for cascade in event.cascades}
    gone: dict[tuple[tuple[str, ...], tuple[str, ...]], set[Values]] = defaultdict(set)
    for event in events:
        (cascade,) = event.cascades
        for columns in every if event.new is not None and cascade.on_update == CASCADE else ():
            shared = tuple(name for name in columns if name in cascade.columns)
            if (
                shared
                and _values(cascade.columns, cascade.referenced, event.new or {}, shared) in gone[columns, shared]
            ):
                return (
                    f"the foreign key {cascade.name} gave its rows a value that rows of {cascade.parent_name} had lost while they were "
                    "read, and it is unknown which of the two a row was read with"
                )
        for columns in every:
            shared = tuple(name for name in cascade.columns if name in columns)
            if shared:
                gone[cascade.columns, shared].add(_values(cascade.columns, cascade.referenced, event.old, shared))
    return ""


def _values(columns: Sequence[str], referenced: Sequence[str], row: Mapping[str, Any], chosen: Sequence[str]) -> Values:
    """Returns the coarse values of some columns of a child that follow from the values of its parent."""
    by_column = dict(zip(columns, referenced, strict=True))
    return coarse_values(tuple(row[by_column[name]] for name in chosen))


def _refuse(given: Publication, events: Sequence[Event]) -> None:
    why = given_again(events) if given.key else ""
    if not given.target.current_state:
        why = "the lake has only its change log or history"
    elif is_partial(given):
        why = "images lack columns (binlog_row_image is not FULL)"
    if why:
        raise CascadesUnseenError(f"foreign keys changed its rows while they were read: {why}")


def _played(rows: AffectedRows, name: str, events: Sequence[tuple[int, Event]]) -> list[Derived]:
    """Returns the images that the events cause: the last one per row for a table with a key, otherwise all."""
    step = len(events) + 2
    known, images = rows.found({event.at.order_key for _, event in events}, step)
    changes: list[Image | Event] = [*images, *_placed(events, step)]
    changes.sort(key=lambda each: (each.at.order_key, each.at.index))
    cascades = [cascade for _, event in events for cascade in event.cascades]
    play = Play(cascades, {}, {(name, columns): values for columns, values in rows.wanted.items()})
    play.run({name: known}, changes)
    if name in play.errors or play.missing:
        error = play.errors.get(name)
        raise CascadesUnseenError(
            without_advice(error.reason) if error else "foreign keys changed its rows by values that no event contains"
        )
    derived = play.derived[name]
    if not rows.key:
        return derived
    return list({tuple(each.values[column] for column in rows.key): each for each in derived}.values())


def _placed(events: Sequence[tuple[int, Event]], step: int) -> Iterator[Event]:
    """Yields the events with sequence numbers between those of the images. Events of one parent row keep the same number."""
    first: dict[ChangeOrder, int] = {}
    for number, (images, event) in enumerate(events):
        index = images * step + 1 + first.setdefault(event.at, number)
        yield dataclasses.replace(event, at=dataclasses.replace(event.at, index=index))


def _images(given: Publication, derived: Sequence[Derived]) -> pa.Table:
    """Returns the images as a table with the columns of the other buffered images, if there are any."""
    model = given.changes if given.changes.names() else given.chunks
    schema = model.schema(model.names()[0])
    theirs = [field for field in schema if not field.name.startswith(OURS)]
    ours = [schema.field(name) if name in schema.names else pa.field(name, kind) for name, kind in OURS_TYPES.items()]
    if model is given.chunks:
        ours = [pa.field(name, kind) for name, kind in OURS_TYPES.items()]
    records = [
        {
            OPERATION: each.operation,
            ORDER_KEY: each.at.order_key,
            COMMIT_TIME: each.at.commit_time,
            ROW: ROW_BASE + number,
            **{field.name: each.values.get(field.name.lower()) for field in theirs},
        }
        for number, each in enumerate(derived)
    ]
    return pa.Table.from_pylist(records, schema=pa.schema([*ours, *theirs]))


def _forget_derived(files: StoredFiles) -> None:
    left = [name for name in files.names() if name.endswith(DERIVED_SUFFIX)]
    if files.url and left:
        files.store().remove_files(left)
    for name in left if not files.url else ():
        (files.folder / name).unlink(missing_ok=True)
