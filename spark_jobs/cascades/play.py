"""Derives the changes that foreign keys made: replays a batch's changes of the tables with foreign keys, in stream order.

InnoDB executes ON DELETE and ON UPDATE inside the storage engine, so the binlog has no row events for them. If a parent row was deleted or
its key changed, the replay changes the child rows as the server did, then the children of these rows, until no row changes. Only rows that
may be affected are loaded. If a replay finds that rows are `missing`, the caller loads them and replays the batch again.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.batch_manifest.values import Cascade
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.fold import DELETE, UPDATE_AFTER, UPDATE_BEFORE

CASCADE, SET_NULL = "CASCADE", "SET NULL"
ALTERED = "a statement altered the table in the same batch"
LEFT_OUT = "images of a row leave columns out, and the lake does not have the row"
ADVICE = "; re-snapshot the table with `sluice snapshot start`, or set its `cascades` to `ignore` or `stop`"
Values = tuple[Any, ...]
# (table, foreign key columns) → values of these columns, converted by `coarse`: values that may be equal become the same value.
Wanted = dict[tuple[str, tuple[str, ...]], set[Values]]

NONE_UNREADABLE: Mapping[str, TableError] = {}
NONE_BUFFERED: Mapping[str, int] = {}


@dataclasses.dataclass(frozen=True)
class ChangeOrder:
    """The position of a change: the order key of its transaction, its sequence number in the batch, and its commit time as staged."""

    order_key: int
    index: int
    commit_time: Any


@dataclasses.dataclass
class CascadeRow:
    """A row of a table during the replay.

    `values` are by column name in lower case. `order_key` is that of the image that wrote the row. `of_lake` tells whether the row comes
    from the lake. `stale` says why columns of the row are unknown, or is empty. A table without a key may have `count` equal rows.
    """

    values: dict[str, Any]
    order_key: int
    of_lake: bool = False
    stale: str = ""
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Image:
    """A staged image, or a change of the whole table: `operation` 0 removes all rows, and -1 alters columns.

    If `partial`, the image lacks columns, and the existing row with the same key has the values of these columns. If the image also changed
    the key (`moved`), the row with the key of the preceding UPDATE_BEFORE image has the values.
    """

    at: ChangeOrder
    table: str
    operation: int
    values: dict[str, Any]
    partial: bool = False
    moved: bool = False


@dataclasses.dataclass(frozen=True)
class Event:
    """A row of the table `parent` that was deleted (`new` is None), or whose referenced columns changed from `old` to `new`. Foreign keys
    in `cascades` may pass the change on. `live` are the child tables whose changes the lake gets. Stopped tables are not `live`.
    """

    at: ChangeOrder
    parent: str
    old: dict[str, Any]
    new: dict[str, Any] | None
    cascades: tuple[Cascade, ...]
    live: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Derived:
    """A change that a foreign key made, in the form of a staged image. `key` has the key columns of the table."""

    at: ChangeOrder
    operation: int
    values: dict[str, Any]
    key: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Passed:
    """A change in a parent table whose child table has a running snapshot. The referenced values of a row changed from `before` to `after`,
    or the row was deleted (`after` is None). The publication of the snapshot applies the change to the child's rows.
    """

    at: ChangeOrder
    cascade: Cascade
    before: Values
    after: Values | None


@dataclasses.dataclass(frozen=True)
class UnderivableChanges:
    """Says why changes of a buffered table cannot be derived. `through` has the parent tables whose running snapshots are the cause."""

    why: str
    through: frozenset[str] = frozenset()


class _Table:
    """The rows of one table at the current position of the replay, with an index by key and one by the columns of each foreign key."""

    def __init__(self, key: tuple[str, ...], columns: Iterable[tuple[str, ...]]) -> None:
        self.key, self.rows = key, dict[Values, CascadeRow]()
        # The row of the newest UPDATE_BEFORE image. If an UPDATE_AFTER image has another key, columns that it lacks get this row's values.
        self.moving: CascadeRow | None = None
        self.found: dict[tuple[str, ...], dict[Values, set[Values]]] = {each: defaultdict(set) for each in columns}

    def key_of(self, values: Mapping[str, Any]) -> Values:
        return tuple(values[name] for name in self.key) if self.key else tuple(sorted(values.items()))

    def put(self, row: CascadeRow) -> None:
        key = self.key_of(row.values)
        there = self.rows.get(key)
        if there is not None and not self.key:
            there.count += row.count
            return
        self.drop(key)
        self.rows[key] = row
        for columns, found in self.found.items():
            found[_coarse_of(row.values, columns)].add(key)

    def remove(self, key: Values) -> None:
        """Removes the row with this key. In a table without a key, removes one of several equal rows."""
        row = self.rows.get(key)
        if row is not None and row.count > 1:
            row.count -= 1
        else:
            self.drop(key)

    def drop(self, key: Values) -> None:
        """Removes the row with this key. In a table without a key, removes all equal rows."""
        row = self.rows.pop(key, None)
        if row is not None:
            for columns, found in self.found.items():
                found[_coarse_of(row.values, columns)].discard(key)


@dataclasses.dataclass
class _Touched:
    """A row that foreign keys change within one event: its values before (`was`) and after (`now`), and the columns that were written.
    `by` is the foreign key that changed the row first.
    """

    was: dict[str, Any]
    now: dict[str, Any]
    by: str
    written: set[str] = dataclasses.field(default_factory=set)


class Play:
    """One replay of a batch.

    - `applied` has, for each table, the order key up to which the lake has the table's changes.
    - `wanted` has the values for which rows were loaded.
    - `unreadable` are the tables whose rows cannot be read from the lake.
    - `again_up_to`: up to this order key, an earlier attempt may have merged tables with derived images that no longer exist.
    - `buffered` has the tables with a running snapshot, whose rows are unknown, and the order key up to which their changes are buffered.

    `run` sets the results. `missing` has the values whose rows must be loaded before the next replay. `derived` has the derived changes of
    each table, in order. `errors` has the error of each table whose changes cannot be derived. `passed` has the changes that the
    publication of a buffered table applies. `lost` says why rows of a buffered table must be read again.
    """

    def __init__(
        self,
        cascades: Iterable[Cascade],
        applied: Mapping[str, int],
        wanted: Wanted,
        unreadable: Mapping[str, TableError] = NONE_UNREADABLE,
        again_up_to: int = 0,
        *,
        buffered: Mapping[str, int] = NONE_BUFFERED,
    ) -> None:
        by_child: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        keys = {}
        for each in cascades:
            by_child[each.child_name].add(each.columns)
            keys[each.child_name] = each.key
        self._tables = {name: _Table(keys[name], columns) for name, columns in by_child.items()}
        self._applied, self._wanted, self._unreadable = applied, wanted, unreadable
        self._again_up_to, self._buffered = again_up_to, buffered
        self.passed: dict[str, list[Passed]] = defaultdict(list)
        self.lost: dict[str, UnderivableChanges] = {}
        self._touched: dict[tuple[str, Values], _Touched] = {}
        # The tables that `_refuse_children` has already handled for the current event.
        self._children_refused: set[str] = set()
        self._at = (-1, -1)
        self.derived: dict[str, list[Derived]] = defaultdict(list)
        self.missing: Wanted = defaultdict(set)
        self.errors: dict[str, TableError] = {}

    def run(self, lake: Mapping[str, Iterable[CascadeRow]], changes: Iterable[Image | Event]) -> None:
        """Replays the changes. `lake` has the rows of the lake. If an earlier attempt merged a table, its rows already contain changes of
        the batch. `changes` are in stream order, and the image of a parent row precedes the event of that row.
        """
        for name, rows in lake.items():
            for row in rows:
                self._tables[name].put(row)
        for change in changes:
            if isinstance(change, Event):
                self._carry(change)
            else:
                self._take(change)

    def _take(self, image: Image) -> None:
        table = self._tables[image.table]
        if image.operation == 0:
            for key in list(table.rows):
                table.drop(key)
        elif image.operation < 0:
            for row in table.rows.values():
                row.stale = ALTERED
        elif image.operation in (DELETE, UPDATE_BEFORE):
            key = table.key_of(image.values)
            table.moving = table.rows.get(key) if image.operation == UPDATE_BEFORE else None
            table.remove(key)
        else:
            self._put_image(table, image)

    def _put_image(self, table: _Table, image: Image) -> None:
        """Adds an image's row. Columns that the image lacks get the existing row's values; without an existing row, the row is `stale`."""
        there = table.rows.get(table.key_of(image.values)) if table.key else None
        there = table.moving if image.moved else there
        known = {**there.values, **image.values} if there else image.values
        lacking = [name for columns in table.found for name in columns if name not in known]
        values = {**dict.fromkeys(lacking), **known}
        stale = (there.stale if there else LEFT_OUT) if image.partial else ""
        table.put(CascadeRow(values, image.at.order_key, stale=stale))

    def _carry(self, event: Event) -> None:
        """Applies an event to the child tables depth first, as the server does."""
        if self._at != (event.at.order_key, event.at.index):
            self._touched.clear()
            self._at = event.at.order_key, event.at.index
        self._children_refused.clear()
        waiting = [(event.parent, event.old, event.new)]
        begin = True
        while waiting:
            parent, old, new = waiting.pop()
            for cascade in event.cascades:
                complete = not begin or set(cascade.referenced) == set(event.old)
                if cascade.parent_name == parent and complete and cascade.child_name in event.live:
                    waiting += self._follow(event, cascade, old, new)
            begin = False

    def _follow(
        self, event: Event, cascade: Cascade, old: dict[str, Any], new: dict[str, Any] | None
    ) -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
        """Applies one foreign key after a parent row changed from `old` to `new`, or was deleted (`new` is None). Returns the changed
        child rows as tuples (table, old, new).
        """
        before = tuple(old[name] for name in cascade.referenced)
        after = None if new is None else tuple(new[name] for name in cascade.referenced)
        action = cascade.on_delete if after is None else cascade.on_update
        if None in before or before == after or not (action or cascade.doubt):
            return []
        if cascade.child_name in self._buffered:
            self._pass_on(event, Passed(event.at, cascade, before, after))
            return []
        if cascade.child_name not in self._tables:
            self._refuse(event, cascade.child_name, _error(cascade, "the table has stopped"))
            return []
        if cascade.child_name in self._unreadable:
            self._refuse(event, cascade.child_name, self._unreadable[cascade.child_name])
        if cascade.child_name in self.errors:
            self._refuse_children(event, cascade.child_name)
            return []
        if self._applied.get(cascade.child_name, -1) >= event.at.order_key:
            if event.at.order_key <= self._again_up_to:
                self._refuse_below(event, cascade)
            return []
        try:
            if cascade.unlike:
                raise _error(cascade, cascade.doubt)
            keys = self._referencing(event, cascade, before)
            return [change for key in keys for change in self._change(event, cascade, action, key, after)]
        except TableError as error:
            self._refuse(event, cascade.child_name, error)
            return []

    def _pass_on(self, event: Event, change: Passed) -> None:
        """Called if the child has a running snapshot. Adds `change` to `passed`, so that the snapshot's publication applies it. If the
        publication cannot apply it, records that the child's rows must be read again. Does neither if an earlier attempt has buffered
        `change`. Calls `_refuse_child` for the child's own children, because their changes cannot be derived before the publication.
        """
        cascade, child = change.cascade, change.cascade.child_name
        for below in event.cascades:
            if below.parent_name != child or below.child_name not in event.live or not goes_on(change, below):
                continue
            if below.child_name not in self._buffered:
                # The table `below.child_name` has no running snapshot, so it gets an error in this batch, and the batch is repeated. If
                # `child` were published before, the repeated run would find no changes to pass on. Reading `child` again delays that.
                self._read_again(
                    event,
                    child,
                    f"foreign keys pass changes on to {below.child_name}, which has no open snapshot",
                )
            self._refuse_child(event, below)
        if event.at.order_key <= self._buffered[child]:
            return
        if cascade.unlike:
            self._read_again(event, child, without_advice(_error(cascade, cascade.doubt).reason))
        elif change.after is not None and set(cascade.columns) & set(cascade.key):
            self._read_again(event, child, f"the foreign key {cascade.name} changed keys of rows of the table")
        else:
            self.passed[child].append(change)

    def _read_again(self, event: Event, table: str, why: str, through: str = "") -> None:
        """Records that the rows of `table`, which has a running snapshot, must be read again, unless the event's changes are buffered
        already. Calls `_refuse_children`, because changes of `table` are unknown. `through`: the parent whose snapshot is the cause.
        """
        if event.at.order_key > self._buffered[table]:
            known = self.lost.get(table)
            way = (known.through if known else frozenset()) | ({through} - {"", table})
            self.lost[table] = UnderivableChanges(known.why if known else why, way)
        self._refuse_children(event, table)

    def _refuse_below(self, event: Event, cascade: Cascade) -> None:
        """Called if an earlier attempt has merged the child table of `cascade`, and the images that the attempt derived no longer exist. So
        it is unknown which rows of the child table the event changed. Calls `_refuse` for the child table's own children that lack the
        event's changes.
        """
        for below in event.cascades:
            if (
                below.parent_name == cascade.child_name
                and below.child_name in event.live
                and self._is_behind(event, below.child_name)
            ):
                lost = cascade.child_name
                why = f"the table depends on changes of {lost}, which are merged already and whose files were removed"
                self._refuse(event, below.child_name, _error(below, why))

    def _is_behind(self, event: Event, table: str) -> bool:
        """Returns whether the lake lacks the event's changes of the table. For a buffered table, returns whether its buffer lacks them."""
        has = self._buffered if table in self._buffered else self._applied
        return has.get(table, event.at.order_key) < event.at.order_key

    def _refuse(self, event: Event, table: str, error: TableError) -> None:
        """Records an error for `table`, and calls `_refuse_children`. If `table` has a running snapshot, calls `_read_again` instead."""
        if table in self._buffered:
            self._read_again(event, table, without_advice(error.reason))
            return
        self.errors.setdefault(table, error)
        self._refuse_children(event, table)

    def _refuse_children(self, event: Event, table: str) -> None:
        """Calls `_refuse_child` for the children of a table whose changes cannot be derived. Does this once per event and table."""
        if table not in self._children_refused:
            self._children_refused.add(table)
            for cascade in event.cascades:
                if cascade.parent_name == table != cascade.child_name and cascade.child_name in event.live:
                    self._refuse_child(event, cascade)

    def _refuse_child(self, event: Event, cascade: Cascade) -> None:
        """Called if not all changes of the parent of `cascade` are known. The rows of a child with a running snapshot are read again. Any
        other child gets an error, unless the parent has a running snapshot and the lake already has the event's changes of the child.
        """
        parent, child = cascade.parent_name, cascade.child_name
        if child in self._buffered:
            why = f"foreign keys change rows of the table when rows of {parent} change, and Sluice does not know all changes of {parent}"
            if parent in self._buffered:
                why = f"foreign keys change rows of the table when rows of {parent} change, and a snapshot of {parent} is in progress"
            self._read_again(event, child, why, through=parent if parent in self._buffered else "")
        elif parent in self._buffered and not self._is_behind(event, child):
            self._refuse_children(event, child)
        elif parent in self._buffered:
            self._refuse(event, child, _error(cascade, f"a snapshot of {parent} is in progress"))
        else:
            why = (
                f"the foreign key {cascade.name} changes rows of the table when rows of {parent} change, and "
                f"Sluice does not know all changes of {parent}"
            )
            self._refuse(event, child, TableError(child, why))

    def _referencing(self, event: Event, cascade: Cascade, before: Values) -> list[Values]:
        """Returns the keys of the child rows that reference the values `before`. If rows with these values were not loaded, also adds the
        values to `missing`. Raises TableError if it is uncertain which rows reference `before`, or how the foreign key changes them.
        """
        table, coarse = self._tables[cascade.child_name], coarse_values(before)
        if coarse not in self._wanted.get((cascade.child_name, cascade.columns), ()):
            self.missing[cascade.child_name, cascade.columns].add(coarse)
        self._refuse_order(cascade, coarse)
        keys = []
        for key in sorted(table.found[cascade.columns].get(coarse, ()), key=repr):
            row = table.rows[key]
            if row.of_lake and row.order_key >= event.at.order_key:
                continue  # The lake has the row as a later change left it, so the row already contains the event's effect.
            values = tuple(row.values[name] for name in cascade.columns)
            if values != before:
                raise _error(
                    cascade,
                    f"the server's collation decides whether {values!r} equals {before!r}, and Sluice does not know its decision",
                )
            if cascade.doubt:
                raise _error(cascade, cascade.doubt)
            keys.append(key)
        return keys

    def _refuse_order(self, cascade: Cascade, coarse: Values) -> None:
        """Raises TableError if two foreign keys with a common column both apply to one change. The result depends on which of them the
        server applies first, and this order is unknown.
        """
        for (name, _), row in self._touched.items():
            shared = name == cascade.child_name and row.by != cascade.name and row.written & set(cascade.columns)
            if shared and coarse in (_coarse_of(row.was, cascade.columns), _coarse_of(row.now, cascade.columns)):
                raise _error(cascade, f"the foreign key {row.by} changed the same column in the same statement")

    def _change(
        self, event: Event, cascade: Cascade, action: str, key: Values, after: Values | None
    ) -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
        table = self._tables[cascade.child_name]
        row = table.rows[key]
        derived = self.derived[cascade.child_name]
        touched = self._touched.setdefault((cascade.child_name, key), _Touched(row.values, row.values, cascade.name))
        if action == CASCADE and after is None:
            table.drop(key)
            derived += [Derived(event.at, DELETE, row.values, table.key)] * row.count
            return [(cascade.child_name, row.values, None)]
        if row.stale or cascade.generated:
            why = row.stale or "the table has generated columns, whose values only the server computes"
            raise _error(cascade, f"the columns of a changed row outside the foreign key are unknown, because {why}")
        given = after if action == CASCADE and after is not None else (None,) * len(cascade.columns)
        values = {**row.values, **dict(zip(cascade.columns, given, strict=True))}
        touched.written.update(cascade.columns)
        touched.now = values
        for _ in range(row.count):
            if not table.key or table.key_of(values) != key:
                derived.append(Derived(event.at, UPDATE_BEFORE, row.values, table.key))
            derived.append(Derived(event.at, UPDATE_AFTER, values, table.key))
        table.drop(key)
        table.put(CascadeRow(values, event.at.order_key, count=row.count))
        return [(cascade.child_name, row.values, values)]


def goes_on(change: Passed, below: Cascade) -> bool:
    """Returns whether the foreign key `below`, whose parent is the child of `change`, may apply to the rows that the change affects."""
    cascade = change.cascade
    if change.after is None and (cascade.on_delete == CASCADE or cascade.doubt):
        return bool(below.on_delete or below.doubt)
    return bool((below.on_update or below.doubt) and set(cascade.columns) & set(below.referenced))


def coarse_values(values: Values) -> Values:
    return tuple(coarse(value) for value in values)


def coarse(value: Any) -> Any:
    """Converts a value so that all values that a server may consider equal give the same result. Ignores case, accents, trailing blanks and
    ignorable characters. Values that the server considers different may also give the same result.
    """
    if isinstance(value, bytes):
        return value.rstrip(b"\0")
    if not isinstance(value, str):
        return value
    bare = "".join(
        each
        for each in unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", value).casefold())
        if unicodedata.category(each) not in IGNORED
    )
    return "".join(SAME.get(each, each if each < "\U00010000" else "\ufffd") for each in bare).rstrip()


IGNORED = {"Mn", "Me", "Cc", "Cf"}
SAME = {"æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "ł": "l", "ħ": "h", "\u0131": "i", "þ": "th"} | {
    chr(hiragana): chr(hiragana + 0x60) for hiragana in range(0x3041, 0x3097)
}


def _coarse_of(values: Mapping[str, Any], columns: tuple[str, ...]) -> Values:
    return coarse_values(tuple(values[name] for name in columns))


def _error(cascade: Cascade, why: str) -> TableError:
    return TableError(
        cascade.child_name,
        f"the foreign key {cascade.name} to {cascade.parent_name} changed rows of the table without row "
        f"events, and Sluice cannot compute the new values: {why}{ADVICE}",
    )


def without_advice(reason: str) -> str:
    """Returns the reason without ADVICE. A table with a running snapshot needs no advice, because its rows are read again anyway."""
    return reason.removesuffix(ADVICE)
