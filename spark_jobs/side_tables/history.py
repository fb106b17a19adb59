"""Applies changes to a history: each commit opens new versions of rows and closes earlier ones. `write` and `publish` call this module.

deltalake makes small merges in this process. Spark makes larger merges with a MERGE statement. deltalake and Spark use the same SQL for
conditions and values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import QueryBuilder

from sluice.batch_manifest.values import Alteration, ChangesSegment, LakeColumn, SchemaSegment, Segment, TruncateSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.fold import images, parquet_view, staged_view
from sluice.spark_jobs.merging.merge_sql import fill_values
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.side_tables import history_sql
from sluice.spark_jobs.side_tables.columns import MappedColumns, map_columns, taken_over
from sluice.spark_jobs.side_tables.side_table import NO_HOOKS, SideTable
from sluice.spark_jobs.side_tables.versions import (
    CLOSES,
    COMMIT_TIME_TYPE,
    FROM_KEY,
    IS_CURRENT,
    OPERATION_NAME,
    PERIOD,
    PERIOD_TYPES,
    TO_KEY,
    VALID_FROM,
    VALID_TO,
    as_source,
    folded,
)
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, OPERATION, ORDER_KEY, ROW, last_order_key
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.tables.exact_bounds import writer_properties
from sluice.spark_jobs.targets.ways import BYTES_MAX, FEATURES, ROWS_MAX

KIND = "history"
# Kinds of commits that apply no segment of the stream. Each kind has its own app id.
READ, COLUMNS, RENAMED = "read", "columns", "renamed"
VIEW = "sluice_history"
KEY_PROPERTY = "sluice.key"  # A table property that stores the source's key columns. Merges close versions by this key.
IMAGE_NOT_FULL = "IMAGE_NOT_FULL"
OUT = "or remove `history` of the table from conf/"
KEYLESS = f"the table has no key, so rows cannot be identified for a history; name columns in `key`, {OUT} (a change log needs no key)"
PARTIAL = (
    "row images of the table lack columns, and each version in a history needs all columns: set "
    f"binlog_row_image=FULL on the source, {OUT}"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commit:
    """The parameters of a commit to a history. `table` has the app id of the commit. `reads`: the merged rows come from a comparison of the
    history with the current rows. Such a row also closes a version that was opened at the row's own position, not only earlier versions.
    """

    table: SideTable
    order_key: int
    user_metadata: str
    reads: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """The history of one table. Spark makes large merges in `session`, and all merges if `by_spark`. deltalake makes the other merges,
    and all merges if `session` is None. `folder` is for files that Spark reads.
    """

    table: SideTable
    folder: Path
    session: LakeSession | None = None
    by_spark: bool = False

    def apply(self, segment: Segment, user_metadata: str) -> bool:
        """Applies a segment. Returns whether it made a commit that opens or closes versions. Does nothing if the history already has the
        segment. Raises TableError if the segment cannot be applied.
        """
        order_key = last_order_key(segment)
        if self.table.applied >= order_key:
            return False
        match segment:
            case ChangesSegment():
                return self._change(segment, user_metadata)
            case TruncateSegment():
                return self._truncate(segment, user_metadata)
            case SchemaSegment():
                return self._evolve(segment, user_metadata)

    def take(
        self,
        current_state: DeltaTable,
        version: int,
        key: Sequence[str],
        position: tuple[int, int],
        user_metadata: str,
        *,
        at_position: bool = False,
    ) -> bool:
        """Makes the open versions of rows equal to the rows that `current_state` has at Delta version `version`. The row versions that this
        call opens have the operation `read`. Returns whether anything differed.

        The rows of `current_state` have all changes up to `position` (order key, commit time in µs). A new row version begins at the last
        change of its row. Exceptions: it begins at `position` if `at_position`, or if the version that it replaces begins at that change or
        later. Raises TableError if the history cannot be written, or if only Spark can read `current_state` and `session` is None.
        """
        at = current_state.at(version)
        differed = self._take(at, key, position, user_metadata, at_position=at_position)
        if position[0] > self.table.applied:
            self.table.mark(position[0], user_metadata)
        return differed

    def _take(
        self, at: DeltaTable, key: Sequence[str], position: tuple[int, int], user_metadata: str, *, at_position: bool
    ) -> bool:
        columns = [
            LakeColumn(name=name, type=kind)
            for name, kind in at.snapshot.schema
            if name not in {ORDER_KEY, COMMIT_TIME, OPERATION, DELETED}
        ]
        names = self._give(columns, key, pa.schema(at.log.schema().to_arrow()), (position[0], user_metadata))
        deleted = f"coalesce({DELETED}, false)" if DELETED in at.snapshot.columns else ""
        differs = history_sql.HistoryDifference(
            names=names,
            key=tuple(key),
            order_key=position[0],
            time_us=position[1],
            deleted=deleted,
            at_position=at_position,
            left=self._dropped(names),
        )
        commit = dataclasses.replace(self._separate(position[0], user_metadata), reads=True)
        keys = _spelled(names, key)
        unread = sorted(frozenset(at.log.protocol().reader_features or ()) - FEATURES)
        if unread and self.session is None:
            why = (
                "the history begins with the rows of the current-state table, which has the features "
                f"{', '.join(unread)} that only Spark can read, and this run has no Spark session. Wait for the publication "
                "of the table's snapshot, which writes the history with Spark, or remove `history` of the table from conf/"
            )
            raise TableError(self.table.name, why)
        if not unread and self._is_small(at.row_count + row_count(self.table)):
            found = QueryBuilder().register("m", at.log).register("h", self.table.log)
            query = differs.query("m", "h", _quoted, "to_timestamp_micros")
            rows = pa.table(found.execute(query).read_all())
            return bool(rows.num_rows) and self._merge(self._cast(rows), keys, commit)
        relation = f"{sql_text.delta_path(at.path)} VERSION AS OF {at.snapshot.version}"
        ours = sql_text.delta_path(self.table.path)
        query = differs.query(f"(SELECT * FROM {relation})", ours, sql_text.identifier, "timestamp_micros")
        return self._by_spark(query, keys, at.row_count, commit)

    def take_read(
        self,
        selection: str,
        read: tuple[Sequence[LakeColumn], pa.Schema],
        key: Sequence[str],
        position: tuple[int, int],
        user_metadata: str,
    ) -> bool:
        """Makes the open versions equal to the rows of a snapshot, for a table without a current-state table. `selection` is Spark's SELECT
        of the rows with Sluice's columns. `read` has the source's columns, and the schema of the snapshot's files. A new row version begins
        at the last change of its row. Exception: it begins at `position` (order key, commit time in µs) if the version that it replaces
        begins at that change or later. Returns whether anything differed.
        """
        names = self._give(read[0], key, read[1], (position[0], user_metadata))
        left = self._dropped(names)
        differs = history_sql.HistoryDifference(
            names=names, key=tuple(key), order_key=position[0], time_us=position[1], left=left
        )
        ours = sql_text.delta_path(self.table.path)
        query = differs.query(f"({selection})", ours, sql_text.identifier, "timestamp_micros")
        commit = dataclasses.replace(self._separate(position[0], user_metadata), reads=True)
        differed = self._by_spark(query, _spelled(names, key), row_count(self.table), commit)
        if position[0] > self.table.applied:
            self.table.mark(position[0], user_metadata)
        return differed

    def _commit(self, order_key: int, user_metadata: str) -> Commit:
        return Commit(table=self.table, order_key=order_key, user_metadata=user_metadata)

    def _separate(self, order_key: int, user_metadata: str) -> Commit:
        """Returns a commit that applies no change of the stream. If the history already has this order key or a later one, the commit would
        count as made already. So it gets the app id of the READ commits, and an order key that is free under this app id.
        """
        if order_key > self.table.applied:
            return self._commit(order_key, user_metadata)
        aside = self.table.aside(READ)
        return Commit(table=aside, order_key=max(order_key, aside.applied + 1), user_metadata=user_metadata)

    def _change(self, segment: ChangesSegment, user_metadata: str) -> bool:
        if not segment.key:
            raise TableError(self.table.name, KEYLESS, for_good=True)
        if segment.partial:
            raise TableError(self.table.name, PARTIAL, state=IMAGE_NOT_FULL, for_good=True)
        comes = (segment.last_order_key, user_metadata)
        names = self._give(segment.columns, segment.key, pq.read_schema(segment.file), comes)
        keys, commit = _spelled(names, segment.key), self._commit(segment.last_order_key, user_metadata)
        if not self._is_small(segment.rows, segment.size_bytes):
            self._session.sql(staged_view(VIEW, segment, self._session.uploaded))
            fresh_images = images(VIEW, segment, self.table.applied)
            query = history_sql.versions(fresh_images, names, segment.key, self._dropped(names))
            return self._by_spark(query, keys, segment.rows + row_count(self.table), commit)
        wanted = [OPERATION, ORDER_KEY, COMMIT_TIME, ROW, *names]
        staged = pq.read_table(segment.file, columns=wanted)
        fresh: Any = pc.greater(staged[ORDER_KEY], pa.scalar(self.table.applied, pa.int64()))
        source = as_source(folded(staged.filter(fresh), segment.key, list(names)), dict(names), self._schema())
        return self._merge(source, keys, commit)

    def _truncate(self, segment: TruncateSegment, user_metadata: str) -> bool:
        if self.table.log is None:
            return False
        return self._close(segment.commit_time_us, IS_CURRENT, self._commit(segment.order_key, user_metadata))

    def leave(self, order_key: int, commit_time_us: int, user_metadata: str) -> bool:
        """Closes the open versions of a table that was renamed at `order_key`. If a new table of the old name has opened versions since
        then, these versions stay open.
        """
        if self.table.log is None:
            return False
        commit = Commit(table=self.table.aside(RENAMED), order_key=order_key, user_metadata=user_metadata)
        return self._close(commit_time_us, f"{IS_CURRENT} AND {FROM_KEY} < {order_key}", commit)

    def _close(self, time_us: int, predicate: str, commit: Commit) -> bool:
        micros = "to_timestamp_micros" if self._is_small(row_count(self.table)) else "timestamp_micros"
        closing = {VALID_TO: f"{micros}({time_us})", TO_KEY: str(commit.order_key), IS_CURRENT: "false"}
        return self._update(closing, predicate, commit)

    def _update(self, values: Mapping[str, str], predicate: str, commit: Commit) -> bool:
        """Sets columns in the rows that match the predicate. `values` has SQL expressions, in which names are quoted for deltalake."""
        if not self._is_small(row_count(self.table)):
            pairs = ", ".join(f"{_quoted(name)} = {value}" for name, value in values.items()).replace('"', "`")
            statement = f"UPDATE {sql_text.delta_path(self.table.path)} SET {pairs} WHERE {predicate}"
            return self._run(statement, commit)
        table = commit.table

        def write() -> None:
            table.log.update(
                {_quoted(name): value for name, value in values.items()},
                predicate=predicate,
                writer_properties=writer_properties(self._schema()),
                commit_properties=table.properties(commit.order_key, commit.user_metadata),
                post_commithook_properties=NO_HOOKS,
            )

        done = table.commit(commit.order_key, write)
        self.table.open()
        return done

    def _evolve(self, segment: SchemaSegment, user_metadata: str) -> bool:
        """Adds new columns. If the DDL statement gives existing rows a value in a new column, closes all open versions and opens new
        versions with this value. Returns whether versions were closed.
        """
        if self.table.log is None:
            return False
        columns = self._widen(segment.columns, segment.key, (segment.order_key, user_metadata), segment.alterations)
        if not segment.fills:
            self.table.mark(segment.order_key, user_metadata)
            return False
        keys, commit = _spelled(columns.names, segment.key), self._commit(segment.order_key, user_metadata)
        if not self._is_small(row_count(self.table)):
            values = {
                columns.names[name]: value for name, value in fill_values(segment).items() if name in columns.names
            }
            ours, at_us = sql_text.delta_path(self.table.path), segment.commit_time_us
            query = history_sql.reopened(ours, list(self._given), values, segment.order_key, at_us)
            return self._by_spark(query, keys, row_count(self.table), commit)
        types = {column.name: column.type for column in segment.columns}
        fills = {columns.names[name]: (value, types[name]) for name, value in segment.fills if name in columns.names}
        schema = self._schema()
        current = QueryBuilder().register("h", self.table.log).execute(f"SELECT * FROM h WHERE {IS_CURRENT}")
        rows: Any = pa.table(current.read_all()).select(schema.names).cast(schema)
        at = {
            **{name: _filled(value, kind, schema.field(name).type) for name, (value, kind) in fills.items()},
            VALID_FROM: pa.scalar(segment.commit_time_us).cast(COMMIT_TIME_TYPE),
            FROM_KEY: pa.scalar(segment.order_key, pa.int64()),
            OPERATION_NAME: pa.scalar("update"),
        }
        closed, opened = _with(rows, {VALID_TO: at[VALID_FROM], TO_KEY: at[FROM_KEY]}), _with(rows, at)
        marks: Any = pa.array([True] * rows.num_rows + [False] * rows.num_rows)
        source = pa.concat_tables([closed, opened]).append_column(CLOSES, marks)
        return self._merge(source, keys, commit)

    def _give(
        self, columns: Sequence[LakeColumn], key: Sequence[str], types: pa.Schema, at: tuple[int, str]
    ) -> Mapping[str, str]:
        """Creates the history, or adds columns that it lacks. Returns the name of the history's column for each column of the source.
        `types` has the Arrow types of the source's columns. `at` is the order key and the metadata of the next commit.
        """
        if self.table.log is None:
            mapped = map_columns(self.table.name, columns, {}, {}, [column.name for column in PERIOD])
            fields = [pa.field(mapped.names[column.name], types.field(column.name).type) for column in columns]
            own = [pa.field(column.name, PERIOD_TYPES[column.name]) for column in PERIOD]
            comment = (
                f"Every version of every row of {self.table.name}, with the period in which the version was "
                "valid. Only Sluice writes this table."
            )
            self.table.make(pa.schema([*fields, *own]), {KEY_PROPERTY: json.dumps(list(key))}, comment)
            return mapped.names
        self._keep_key(key)
        return self._widen(columns, key, at).names

    def _keep_key(self, key: Sequence[str]) -> None:
        if kept_key(self.table) != tuple(key):
            self.table.keep({KEY_PROPERTY: json.dumps(list(key))})

    def _widen(
        self,
        columns: Sequence[LakeColumn],
        key: Sequence[str],
        at: tuple[int, str],
        alterations: Sequence[Alteration] = (),
    ) -> MappedColumns:
        """Adds missing columns to the history, and fills them in the open versions. Call this before a merge, because a merge finds open
        versions by their key columns. Raises TableError if an open version still has NULL in a key column.

        A run may crash after it has added a key column and before it has filled it. The open versions then have NULL in this column. So an
        existing key column is filled too if `_lack` finds NULL in it.
        """
        there, sources = self._given, self.table.sources
        mapped = map_columns(self.table.name, columns, there, sources, [column.name for column in PERIOD])
        keys = _spelled(mapped.names, key)
        found = [
            each
            for each in taken_over(mapped, columns, there, sources, alterations)
            if each.required or (each.column in keys and self._lack([each.column]))
        ]
        self.table.add(mapped)
        values = {each.column: value for each in found if (value := each.value(_quoted))}
        if values:
            self._take_over(values, at, renames=any(each.renamed for each in found))
        lacking = [each.column for each in found if each.column in keys]
        if self._lack(lacking):
            has = f"current rows of the history have NULL in the key column(s) {', '.join(lacking)}"
            why = f"{has}, so a change of such a row could not end the current version"
            ways = f"move {self.table.path} away: Sluice then creates a history that begins with the current rows"
            raise TableError(self.table.name, f"{why}; {ways}", for_good=True)
        return mapped

    def _take_over(self, values: Mapping[str, str], at: tuple[int, str], *, renames: bool) -> None:
        """Sets columns in the open versions; `values` has SQL expressions. If `renames`, the commit has the order key in `at`, so that the
        update is made only once: after a rename that swaps two columns, a second update would swap the values back.
        """
        aside, (order_key, user_metadata) = self.table.aside(COLUMNS), at
        order_key = order_key if renames else max(order_key, aside.applied + 1)
        self._update(values, IS_CURRENT, Commit(table=aside, order_key=order_key, user_metadata=user_metadata))

    def _lack(self, columns: Sequence[str]) -> bool:
        """Returns whether an open version has NULL in any of these columns. Returns False if the history lacks one of the columns."""
        if not columns or not set(columns) <= set(self._given):
            return False
        lacks = " OR ".join(f"{_quoted(name)} IS NULL" for name in columns)
        query = f"SELECT 1 FROM h WHERE {IS_CURRENT} AND ({lacks}) LIMIT 1"
        return bool(pa.table(QueryBuilder().register("h", self.table.log).execute(query).read_all()).num_rows)

    @property
    def _given(self) -> dict[str, str]:
        """The history's columns that store columns of the source, with their types. Sluice's own columns are left out."""
        ours = {column.name for column in PERIOD}
        return {name: kind for name, kind in self.table.columns.items() if name not in ours}

    def _dropped(self, names: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the columns of the history whose column in the source no longer exists. `names` has the history's column for each column
        of the source.
        """
        return tuple(name for name in self._given if name not in names.values())

    def _schema(self) -> pa.Schema:
        return pa.schema(self.table.log.schema().to_arrow())

    def _is_small(self, rows: int, size_bytes: int = 0) -> bool:
        """Returns whether deltalake merges this many rows and bytes in this process. If not, Spark merges them."""
        return self.session is None or (rows <= ROWS_MAX and size_bytes <= BYTES_MAX and not self.by_spark)

    def _cast(self, rows: pa.Table) -> pa.Table:
        fields = [*self._schema(), pa.field(CLOSES, pa.bool_())]
        return pa.table([rows[field.name].cast(field.type) for field in fields], schema=pa.schema(fields))

    def _merge(self, source: pa.Table, keys: Sequence[str], commit: Commit) -> bool:
        """Merges the rows with deltalake or Spark. `keys` are the history's key columns. Returns whether this call made the commit."""
        table, rows = commit.table, source.num_rows + row_count(self.table)
        if not self._is_small(rows):
            self.folder.mkdir(exist_ok=True)
            path = self.folder / f"{hashlib.sha256(table.path.encode()).hexdigest()[:16]}.parquet"
            pq.write_table(source, path, compression="none")
            kinds = {**self.table.columns, CLOSES: "boolean"}
            self._session.sql(
                parquet_view(
                    VIEW, self._session.uploaded.location(path), {name: kinds[name] for name in source.column_names}
                )
            )
            return self._by_spark(f"SELECT * FROM {VIEW}", keys, rows, commit)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in self._schema().names}
        properties = table.properties(commit.order_key, commit.user_metadata)

        def write() -> None:
            merge = table.log.merge(
                source,
                history_sql.condition(keys, _quoted, reads=commit.reads),
                source_alias="s",
                target_alias="t",
                writer_properties=writer_properties(self._schema()),
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )
            merge = merge.when_matched_update(history_sql.closing())
            merge.when_not_matched_insert(values, f"NOT s.{CLOSES}").execute()

        done = table.commit(commit.order_key, write)
        self.table.open()
        return done

    def _by_spark(self, source: str, keys: Sequence[str], rows: int, commit: Commit) -> bool:
        quote = sql_text.identifier
        self._session.expect(rows)
        names = self._schema().names
        closing = ", ".join(f"{name} = {value}" for name, value in history_sql.closing("t.").items())
        values = ", ".join(f"s.{quote(name)}" for name in names)
        statement = (
            f"MERGE INTO {sql_text.delta_path(self.table.path)} AS t USING ({source}) AS s "
            f"ON {history_sql.condition(keys, quote, reads=commit.reads)} "
            f"WHEN MATCHED THEN UPDATE SET {closing} "
            f"WHEN NOT MATCHED AND NOT s.{CLOSES} THEN INSERT ({sql_text.identifiers(tuple(names))}) VALUES ({values})"
        )
        return self._run(statement, commit)

    def _run(self, statement: str, commit: Commit) -> bool:
        before, table = self.table.version, commit.table
        self._session.commit_as(table.txn_id or table.app_id, commit.order_key, commit.user_metadata)
        self._session.commit(table.name, statement)
        for each in (self.table, table):
            each.open()
        table.require_own(before, commit.order_key)
        return self.table.version > before

    @property
    def _session(self) -> LakeSession:
        if self.session is None:
            raise ValueError("there is no Spark session")
        return self.session


def row_count(table: SideTable) -> int:
    """Returns the number of rows of a history, or ROWS_MAX + 1 if its files are larger than BYTES_MAX, so that Spark merges the history."""
    if table.log is None:
        return 0
    files: Any = pa.table(table.log.get_add_actions(flatten=True))
    size = int(pc.sum(files["size_bytes"]).as_py() or 0)
    return ROWS_MAX + 1 if size > BYTES_MAX else int(pc.sum(files["num_records"]).as_py() or 0)


def is_large(table: SideTable, rows: int, size_bytes: int) -> bool:
    """Returns whether Spark must merge the history: the history and its changes have more than ROWS_MAX rows together, or one of them has
    more than BYTES_MAX bytes. `rows` and `size_bytes` are those of the changes.
    """
    return rows + row_count(table) > ROWS_MAX or size_bytes > BYTES_MAX


def kept_key(table: SideTable) -> tuple[str, ...]:
    """Returns the key columns of the last merge, from a table property, or () if the table does not have the property. A batch that has
    only a TRUNCATE needs them, because a TRUNCATE names no key.
    """
    known = {} if table.log is None else table.log.metadata().configuration
    return tuple(json.loads(known.get(KEY_PROPERTY, "[]")))


def _with(rows: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """Returns the rows with these columns replaced. Each column gets the same value in all rows."""
    for name, value in values.items():
        index = rows.schema.get_field_index(name)
        column: Any = pa.array([value.as_py()], value.type).take(pa.array([0] * rows.num_rows, pa.int64()))
        rows = rows.set_column(index, rows.schema.field(index), column.cast(rows.schema.field(index).type))
    return rows


def _filled(value: str, kind: str, type_: Any) -> Any:
    """Converts a value of the manifest to Arrow. In the manifest, binary values are hexadecimal, and instants are in UTC without a zone."""
    if kind == "timestamp":  # Arrow does not convert a text without a zone to a type with a zone.
        return pa.scalar(value).cast(pa.timestamp("us")).cast(type_)
    return pa.scalar(bytes.fromhex(value), type_) if kind == "binary" else pa.scalar(value).cast(type_)


def _spelled(names: Mapping[str, str], key: Sequence[str]) -> list[str]:
    """Returns the history's names of the key columns. `key` and `names` may differ in letter case."""
    there = {name.lower(): theirs for name, theirs in names.items()}
    return [there[name.lower()] for name in key]


def _quoted(name: str) -> str:
    return f'"{name}"'
