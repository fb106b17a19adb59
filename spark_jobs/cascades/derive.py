"""Adds to a batch the changes that foreign keys made without row events, before any table of the batch is merged. `run_batch` calls this
module.

The staged images are replayed on the lake's rows (play.py, rows.py). The derived changes are staged as images (files.py), like the images
that the engine stages. So merges know nothing of foreign keys, and tables can be merged in any order. A repeated run reads the derived
images that the first attempt staged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sluice.batch_manifest.values import AlterationKind, Cascade, SchemaSegment, StagedTable
from sluice.spark_jobs.cascades import files as cascade_files
from sluice.spark_jobs.cascades.play import (
    ADVICE,
    ALTERED,
    NONE_BUFFERED,
    CascadeRow,
    Event,
    Image,
    Passed,
    Play,
    UnderivableChanges,
    Values,
    Wanted,
    coarse_values,
    without_advice,
)
from sluice.spark_jobs.cascades.rows import StagedImages, events_of, lake_rows, refuse_too_many
from sluice.spark_jobs.errors import StagedBatchError, TableError
from sluice.spark_jobs.session import LakeSession, is_away, table_error
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.targets.report import TableTarget

logger = logging.getLogger(__name__)

CASCADE_UNSEEN = "CASCADE_UNSEEN"  # The state of a table whose changes by foreign keys could not be derived.
NOT_FOUND = "the changes that foreign keys made to the rows could not be computed"
Buffer = Callable[[Mapping[str, Sequence[Passed]], Mapping[str, UnderivableChanges]], object]


class _RaisedError(Exception):
    """Raised if the changes of `tables` could not be derived because of the error `cause`."""

    def __init__(self, tables: Collection[str], cause: Exception) -> None:
        super().__init__(tables, cause)
        self.tables, self.cause = frozenset(tables), cause


def buffer_nothing(_passed: Mapping[str, Sequence[Passed]], _lost: Mapping[str, UnderivableChanges]) -> None:
    """Does nothing. Used for a batch in which no table has a running snapshot."""


def carried_out(  # noqa: PLR0917  two callers
    session: LakeSession | None,
    batch: StagedBatch,
    targets: Mapping[str, TableTarget],
    storage_options: Mapping[str, str],
    buffered: Mapping[str, int] = NONE_BUFFERED,
    buffer: Buffer = buffer_nothing,
) -> tuple[StagedBatch, dict[str, TableError]]:
    """Returns the batch together with the changes that foreign keys made without row events. Also returns the error of each table of the
    batch that must not be merged.

    - `session` may be None if all tables of the batch are buffered.
    - `buffered` has the tables with a running snapshot, and the order key up to which their changes are buffered.
    - `buffer` writes to disk, for each buffered table, the changes of parent rows that foreign keys pass on to the table. If a table's
      changes cannot be derived, writes the reason instead. `buffer` is called before the manifest of the derived changes is written. If an
      earlier attempt wrote the manifest, `buffer` gets only the reasons.

    If an error interrupts the derivation, all tables that foreign keys may change in this batch get an error, because the changes of a
    child cannot be derived once its parent is merged. The table that caused the error gets this error. Each other table gets an error that
    names the table that caused it. Raises StagedBatchError, and errors that show that Spark is unavailable.
    """
    if not batch.cascades:
        return batch, {}
    found = cascade_files.kept(batch)
    try:
        if found is None:
            found = _Derivation(session, batch, targets, storage_options, buffered).kept(buffer)
        else:
            # An earlier attempt at the batch derived the changes, except those of the tables in `found[1]`, for which it recorded a reason.
            # If a snapshot of such a table has begun since then, the table's buffer lacks this reason. So `buffer` gets it now.
            lost = {
                name: UnderivableChanges(without_advice(reason))
                for name, reason in found[1].items()
                if name in buffered
            }
            with _errors_of(*buffered):
                buffer({}, lost)
    except _RaisedError as error:
        logger.warning(
            "the changes that foreign keys made to rows could not be computed, so the tables of these rows are not merged: %r",
            error.cause,
        )
        return batch, _refused(batch, error, buffered)
    changed, refused = found
    tables = tuple(changed.get(table.name, table) for table in batch.tables)
    errors = {name: TableError(name, reason, state=CASCADE_UNSEEN, for_good=True) for name, reason in refused.items()}
    return dataclasses.replace(batch, tables=tables), errors


def _refused(batch: StagedBatch, error: _RaisedError, buffered: Collection[str]) -> dict[str, TableError]:
    """Returns an error for each table that foreign keys may change in this batch. The tables that caused the failure get `error.cause`:
    the table that `error.cause` names if it is a TableError, otherwise `error.tables`. Every other table gets an error that names
    `error.tables`. If the result has none of the tables that caused the failure, every table in it gets `error.cause`.
    """
    who = ", ".join(sorted(error.tables))
    raised = {error.cause.table} if isinstance(error.cause, TableError) else error.tables
    live = {table.name for table in batch.tables} | {*buffered}
    live &= {name for events in batch.cascades for name in events.live_names}
    return {
        name: table_error(name, error.cause, NOT_FOUND)
        if name in raised or not raised & live
        else TableError(
            name,
            f"foreign keys connect the table with {who}, and the changes that foreign keys made to rows of {who} could not be "
            "computed; Sluice merges the table once the cause is corrected",
            own=False,
        )
        for name in live
    }


@contextlib.contextmanager
def _errors_of(*tables: str) -> Iterator[None]:
    """Converts an error inside the `with` block to a _RaisedError that names `tables`. Does not convert an error that concerns the
    whole batch or Spark.
    """
    try:
        yield
    except (_RaisedError, StagedBatchError):
        raise
    except Exception as error:
        if is_away(error):
            raise
        raise _RaisedError(tables, error) from error


def _new_names(table: StagedTable, applied: int) -> set[str]:
    """Returns the columns, in lower case, that the lake's rows of a table lack: the columns that schema changes of the batch add, and the
    new names of renamed columns. Leaves out schema changes up to the order key `applied`, because the lake has them.
    """
    changed = [each for each in table.segments if isinstance(each, SchemaSegment) and each.order_key > applied]
    filled = {name.lower() for segment in changed for name, _ in segment.fills}
    return filled | {
        (each.new_name or each.column).lower()
        for each in itertools.chain.from_iterable(segment.alterations for segment in changed)
        if each.kind in {AlterationKind.ADD, AlterationKind.RENAME}
    }


class _Derivation:
    """Derives the changes that foreign keys made without row events. Replays the batch, then loads the rows of the lake that the replay
    needs and that are not loaded yet. Repeats both steps until no row is missing.
    """

    def __init__(
        self,
        session: LakeSession | None,
        batch: StagedBatch,
        targets: Mapping[str, TableTarget],
        storage_options: Mapping[str, str],
        buffered: Mapping[str, int],
    ) -> None:
        self._session, self._batch, self._storage_options = session, batch, storage_options
        self._buffered = buffered
        live = {name for events in batch.cascades for name in events.live_names}
        self._staged = {table.name: table for table in batch.tables if table.name in live}
        cascades = [each for events in batch.cascades for each in events.cascades if each.child_name in self._staged]
        self._cascades = {(each.child_name, each.columns): each for each in cascades}
        self._lake: dict[str, DeltaTable] = {}
        self._applied: dict[str, int] = {}
        for name, table in self._staged.items():
            with _errors_of(name):
                self._lake[name] = DeltaTable(name, targets[name].path, batch.app_id(table), storage_options)
                self._applied[name] = self._lake[name].refresh().applied_order_key
        self._events: list[Event] = []
        for events in batch.cascades:
            with _errors_of(*events.live_names):
                self._events += events_of(events)
        self._wanted: Wanted = defaultdict(set)
        self._rows: dict[str, dict[Values, CascadeRow]] = defaultdict(dict)
        # Table name → the keys whose rows were queried in the lake, as coarse values: values that the server may consider equal have the
        # same coarse value.
        self._queried: dict[str, set[Values]] = defaultdict(set)
        self._unreadable = {
            name: TableError(name, f"foreign keys may have changed rows of the table, and {ALTERED}{ADVICE}")
            for name, table in self._staged.items()
            if self._needed(name) & _new_names(table, self._applied[name])
        }

    def _needed(self, name: str) -> set[str]:
        """Returns the columns of a table that the replay needs: its key, the columns of its foreign keys, and the columns to which foreign
        keys of other tables refer.
        """
        mine = [each for each in self._cascades.values() if each.child_name == name]
        below = [each.referenced for each in self._cascades.values() if each.parent_name == name]
        return set(itertools.chain(*(each.columns + each.key for each in mine), *below))

    def kept(self, buffer: Buffer) -> tuple[dict[str, StagedTable], dict[str, str]]:
        """Derives the changes that foreign keys made, and writes them to disk for a run that repeats the batch. Before it writes, passes
        the changes of parent rows to `buffer`, for tables with a running snapshot. Returns the tables with derived changes, and the reason
        for each table whose changes cannot be derived.
        """
        play = self._play()
        with _errors_of(*self._buffered):
            buffer({name: passed for name, passed in play.passed.items() if name not in play.lost}, play.lost)
        errors = dict(play.errors)
        changed = {}
        for name, derived in play.derived.items():
            if name not in errors:
                try:
                    with _errors_of(name):
                        changed[name] = cascade_files.with_derived(
                            self._batch, self._staged[name], self._lake[name], derived
                        )
                except _RaisedError as error:
                    if not isinstance(error.cause, TableError):
                        raise
                    errors[name] = error.cause
        refused = {name: error.reason for name, error in errors.items()}
        cascade_files.keep(self._batch, list(changed.values()), refused, self._storage_options)
        return changed, refused

    def _play(self) -> Play:
        while True:
            play = Play(
                *(self._cascades.values(), self._applied, self._wanted, self._unreadable, self._batch.again_up_to),
                buffered=self._buffered,
            )
            changes = self._changes()
            rows = {name: [dataclasses.replace(row) for row in found.values()] for name, found in self._rows.items()}
            with _errors_of(*self._staged):
                play.run(rows, changes)
            missing = {where: values for where, values in play.missing.items() if values}
            if not missing:
                return play
            for (name, columns), values in missing.items():
                self._load(self._cascades[name, columns], values)

    def _load(self, cascade: Cascade, values: set[Values]) -> None:
        """Loads from the lake the rows of the child table that have one of these values in the columns of the foreign key."""
        self._wanted[cascade.child_name, cascade.columns] |= values
        self._load_rows(cascade, cascade.columns, values)

    def _load_rows(self, cascade: Cascade, columns: tuple[str, ...], values: set[Values]) -> None:
        """Loads the lake's rows of the child table that have these values in `columns`. If the rows cannot be read, records the error for
        the replay.
        """
        name, rows = cascade.child_name, self._rows[cascade.child_name]
        try:
            with _errors_of(name):
                by = dataclasses.replace(cascade, columns=columns)
                for row in lake_rows(self._session, self._lake[name], by, values):
                    known = tuple(row.values[each] for each in cascade.key)
                    rows.setdefault(known if cascade.key else tuple(sorted(row.values.items())), row)
                refuse_too_many(name, len(rows))
        except _RaisedError as error:
            if not isinstance(error.cause, TableError):
                raise
            self._unreadable[name] = error.cause

    def _changes(self) -> list[Image | Event]:
        """Returns images and events in the order of the stream. Leaves out images that are already in the lake, because the loaded rows
        contain their effect.
        """
        images = itertools.chain.from_iterable(self._images(name) for name in self._staged)
        applied = self._applied
        every: list[Image | Event] = [image for image in images if image.at.order_key > applied[image.table]]
        every += self._events
        return sorted(every, key=lambda each: (each.at.order_key, each.at.index, isinstance(each, Event)))

    def _images(self, name: str) -> list[Image]:
        key = next(each.key for each in self._cascades.values() if each.child_name == name)
        wanted = {columns: values for (table, columns), values in self._wanted.items() if table == name}
        if not wanted:
            return []
        staged = StagedImages(self._staged[name], key)
        with _errors_of(name):
            images = list(staged.relevant(wanted, set(self._rows[name]) if key else set()))
            while self._load_begun(name, key, images):
                images = list(staged.relevant(wanted, set(self._rows[name])))
            return images

    def _load_begun(self, name: str, key: tuple[str, ...], images: list[Image]) -> bool:
        """Loads from the lake the rows with the keys of those `images` that lack columns. The missing columns may be those of a foreign
        key. Skips keys that were queried before. Returns whether any key was queried. If so, the caller selects the images again.
        """
        keys = {tuple(image.values[each] for each in key) for image in images if image.partial}
        values = {coarse_values(each) for each in keys - self._rows[name].keys()} - self._queried[name]
        if values:
            self._queried[name] |= values
            self._load_rows(next(each for each in self._cascades.values() if each.child_name == name), key, values)
        return bool(values)
