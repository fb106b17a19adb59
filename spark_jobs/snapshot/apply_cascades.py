"""Applies the changes that foreign keys made to the rows of a snapshot. `publish` calls this module before it creates the table.

The changes of referenced values (`buffered_cascades`) are replayed on the rows that were read and on the buffered images, in stream order
(`cascades.play`). The result is one more file of buffered images. So the rest of the publication handles no foreign keys.

It is unknown when a chunk was read. For a row with buffered images this does not matter: its state after the last image is exactly known,
and later changes are replayed on this state. A row without images was changed only by foreign keys after the reading began. All these
changes are replayed on the row that was read. A change that the row already contains has no effect, because the row no longer has the old
value.

The exception is a later ON UPDATE CASCADE that gave the row the old value again. The order of the changes is then unknown, and the rows are
read again (`given_again`). Rows of a table without a key were read at a known position, so the exception cannot occur.
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

# The first row number of the images that foreign keys caused (`Derived`). This number is higher than every row number of the stream, so in
# a transaction these images follow the stream's images.
ROW_BASE = 1 << 40
OURS_TYPES = {
    OPERATION: pa.int8(),
    ORDER_KEY: pa.int64(),
    COMMIT_TIME: pa.timestamp("us", "UTC"),
    ROW: pa.int64(),
}


def apply_cascades(given: Publication, label: int, fence: Fence) -> None:
    """Adds the images of changes that foreign keys made, up to the order key `label`, to the buffered images. First removes the file that
    an earlier attempt wrote.

    Raises CascadesUnseenError if the rows must be read again, and OSError or StoreError if a file cannot be read or written.
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
    """Returns why it is unknown in which order foreign keys changed a row that was read. Returns "" if the order is known. Each event has
    exactly one foreign key.

    The order is unknown if a parent lost a value, and a later ON UPDATE CASCADE gave this value to child rows again. A row that was read
    with this value may have been read before the first change or after the second one.
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
                    f"during the snapshot, the foreign key {cascade.name} gave rows of the table a value that rows of "
                    f"{cascade.parent_name} had lost before, so Sluice does not know whether the snapshot read a row before "
                    "or after this change"
                )
        for columns in every:
            shared = tuple(name for name in cascade.columns if name in columns)
            if shared:
                gone[cascade.columns, shared].add(_values(cascade.columns, cascade.referenced, event.old, shared))
    return ""


def _values(columns: Sequence[str], referenced: Sequence[str], row: Mapping[str, Any], chosen: Sequence[str]) -> Values:
    """Returns the values that the `chosen` columns of a child get from the `row` of its parent. The values are coarse: values that the
    server may consider equal become the same (`cascades.play.coarse`).
    """
    by_column = dict(zip(columns, referenced, strict=True))
    return coarse_values(tuple(row[by_column[name]] for name in chosen))


def _refuse(given: Publication, events: Sequence[Event]) -> None:
    why = given_again(events) if given.key else ""
    if not given.target.current_state:
        why = "the lake has only the change log or history of the table"
    elif is_partial(given):
        why = "images lack columns (binlog_row_image is not FULL)"
    if why:
        raise CascadesUnseenError(
            f"foreign keys changed rows during the snapshot, and Sluice cannot replay these changes: {why}"
        )


def _played(rows: AffectedRows, name: str, events: Sequence[tuple[int, Event]]) -> list[Derived]:
    """Replays the events, and returns the images that they cause. In a table with a key, returns the last image of each row; in a table
    without a key, all images. Raises CascadesUnseenError if the changes cannot be derived.
    """
    step = len(events) + 2
    known, images = rows.found({event.at.order_key for _, event in events}, step)
    changes: list[Image | Event] = [*images, *_numbered(events, step)]
    changes.sort(key=lambda each: (each.at.order_key, each.at.index))
    cascades = [cascade for _, event in events for cascade in event.cascades]
    play = Play(cascades, {}, {(name, columns): values for columns, values in rows.wanted.items()})
    play.run({name: known}, changes)
    if name in play.errors or play.missing:
        error = play.errors.get(name)
        raise CascadesUnseenError(
            without_advice(error.reason)
            if error
            else "foreign keys changed rows of the table, and the binlog has no event with the new values"
        )
    derived = play.derived[name]
    if not rows.key:
        return derived
    return list({tuple(each.values[column] for column in rows.key): each for each in derived}.values())


def _numbered(events: Sequence[tuple[int, Event]], step: int) -> Iterator[Event]:
    """Gives the events sequence numbers by which they sort between the table's images. In `events`, each event comes with the number of
    images that precede it in its transaction; the event sorts immediately after these images. Events of the same parent row get the same
    sequence number. `step` is the difference between the sequence numbers of consecutive images.
    """
    first: dict[ChangeOrder, int] = {}
    for number, (images, event) in enumerate(events):
        index = images * step + 1 + first.setdefault(event.at, number)
        yield dataclasses.replace(event, at=dataclasses.replace(event.at, index=index))


def _images(given: Publication, derived: Sequence[Derived]) -> pa.Table:
    """Returns the images that foreign keys caused (`derived`) as a table with the columns of the buffered images of row events. If no such
    images are buffered, the table has the columns of the chunks.
    """
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
