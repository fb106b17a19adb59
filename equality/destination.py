"""Compares tables of one destination with its source. The console, the asset checks and the demo call this module."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ConfigurationError, SourceConnectionError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import read_snapshot
from sluice.cdc_engine.table_meta.schema import TableSchema
from sluice.equality.chunks import Chunks
from sluice.equality.compare import Choose, Comparison, Sums
from sluice.equality.history_side import HistorySide
from sluice.equality.kept import KeptSums
from sluice.equality.lake_side import LakeSide
from sluice.equality.merged import DestinationMerged, Merged
from sluice.equality.reader_side import ReaderSide
from sluice.equality.scope import Scope
from sluice.equality.source_side import SourceSide
from sluice.equality.table_plan import (
    RefusedError,
    expected_types,
    plan,
    refuse_left_out_rows,
    refuse_log_alone,
    refuse_stopped,
)
from sluice.equality.tables import NO_ROWS
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.equality.visible import VisibleSource


@dataclasses.dataclass(frozen=True)
class ComparedDestination:
    """A destination to compare with its source.

    - `storage_options` are deltalake's options, including secrets.
    - `merged` reports how far the engine has merged changes into the lake. If it is None, the destination's ledger is read.
    - `say` is called with a sentence for each table that is compared, and for each wait.
    - `reader` is a replica from which the rows of tables with a key are read. If it is None, the rows of all tables are read from the
      source.
    """

    config: SluiceConfig
    name: str
    source: Source
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    merged: Merged | None = None
    say: Callable[[str], None] | None = None
    reader: Source | None = None

    @property
    def settings(self) -> DestinationConfig:
        return self.config.destinations[self.name]

    @property
    def directory(self) -> Path:
        return self.config.destination_dir(self.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differing:
    """The result of comparing one table. For a repair, `scope` has the keys whose rows differ. `scope` is None if no key differs, if the
    table has no key, or if the table was not compared.
    """

    result: TableResult
    scope: Scope | None = None


def compare_destination(request: ComparedDestination, tables: Sequence[str], extent: Extent) -> Iterator[TableResult]:
    """Yields one result per table as soon as its comparison ends. If `tables` is empty, compares all captured tables except those that
    have only a change log.

    Raises ConfigurationError for a table that is not captured, and SourceConnectionError if the source does not answer.
    """
    for each in differing(request, tables, extent):
        yield each.result


def differing(request: ComparedDestination, tables: Sequence[str], extent: Extent) -> Iterator[Differing]:
    """Yields, for each table, the result and the keys whose rows differ, as soon as the table's comparison ends. If `tables` is empty,
    compares all captured tables except those that have only a change log. Raises ConfigurationError for a table that is not captured, and
    SourceConnectionError if the source does not answer.
    """
    captured = TableFilter(request.settings.include, request.settings.exclude)
    with contextlib.ExitStack() as opened:
        side = opened.enter_context(SourceSide(request.source))
        reader = _reader(request, side, opened)
        snapshot = side.query(lambda session: read_snapshot(session, captured.keeps))
        found = {f"{each.database}.{each.table}": each for each in snapshot.tables}
        for name in tables:
            if name not in found and ("." not in name or not captured.keeps(*name.split(".", 1))):
                raise ConfigurationError(
                    f"{request.name} captures no table {name!r}; captured tables: {', '.join(sorted(found)) or 'none'}"
                )
        comparable = [name for name in found if request.settings.table(*name.split(".", 1)).shows_rows]
        KeptSums(request.directory).keep_only(found.keys())
        wanted = sorted(tables or comparable)
        for number, name in enumerate(wanted, 1):
            if request.say is not None:
                request.say(f"comparing {name} ({number} of {len(wanted)})")
            yield _compared(request, (side, reader), name, found.get(name), extent)


def _reader(request: ComparedDestination, side: SourceSide, opened: contextlib.ExitStack) -> SourceSide:
    """Returns the connection over which the rows of tables with a key are read: a connection to the replica `request.reader`. Returns
    `side`, the connection to the source, if there is no replica, or if `request.reader` is the source itself.
    """
    if request.reader is None:
        return side
    reader = ReaderSide(request.reader, side, lambda: _cursor(request))
    opened.enter_context(reader)
    return side if reader.is_source else reader


def _cursor(request: ComparedDestination) -> Position | None:
    return read_ledger(request.directory).cursor


def _compared(
    request: ComparedDestination,
    sides: tuple[SourceSide, SourceSide],
    name: str,
    schema: TableSchema | None,
    extent: Extent,
) -> Differing:
    """Compares one table. Returns a REFUSED result if the table cannot be compared. Raises SourceConnectionError if the source does not
    answer. `sides` are the connection to the source, and the connection that reads the rows of tables with a key. `schema` is the schema
    that the table had in the source when the comparison of the destination began, or None if the source had no such table.
    """
    began = time.time_ns() // 1000
    if schema is None:
        why = (
            f"the source has no table {name}, or the source's user in conf/ may not see this table: if the table was not "
            "dropped or renamed, grant SELECT on the table to this user"
        )
        return _refused(name, why, began, extent)
    try:
        return _compare(request, sides, schema, extent)
    except Exception as error:  # Any error concerns only this table, so the other tables are compared.
        for side in dict.fromkeys(sides):
            side.connect_again()
        return _refused(name, _why_refused(error), began, extent)


def _refused(name: str, why: str, began_us: int, extent: Extent) -> Differing:
    return Differing(
        result=TableResult(table=name, verdict=Verdict.REFUSED, reason=why, mode=extent.mode, checked_at_us=began_us)
    )


def _why_refused(error: Exception) -> str:
    match error:
        case RefusedError():
            return str(error)
        case SourceConnectionError():
            return (
                f"the source ended a query of the comparison: {error}. The table may have been altered, renamed or dropped meanwhile: "
                "compare again"
            )
    return f"the table could not be compared: {type(error).__name__}: {error}"


def _compare(
    request: ComparedDestination, sides: tuple[SourceSide, SourceSide], schema: TableSchema, extent: Extent
) -> Differing:
    """Compares one table. Raises RefusedError if the lake does not follow the table's changes, because the table has stopped or has an
    open snapshot, or if this began during the comparison.
    """
    name, records = f"{schema.database}.{schema.table}", SnapshotRecords(request.directory)
    refuse_stopped(name, read_ledger(request.directory).stopped_tables)
    before = records.get(name)
    if before is not None and before.is_open:
        raise RefusedError(f"{before.lake_is_older}; compare the table once the rows are published")
    compared = _compare_rows(request, sides, schema, extent)
    if compared.result.equal:
        return compared
    refuse_stopped(name, read_ledger(request.directory).stopped_tables)
    now = records.get(name)
    if now is not None and (before is None or now.snapshot_id != before.snapshot_id):
        raise RefusedError(
            f"a snapshot of the table began during the comparison, and is {now.state}, so the lake did not follow the changes of the "
            "source: compare the table again once the rows are published"
        )
    return compared


def _compare_rows(
    request: ComparedDestination, sides: tuple[SourceSide, SourceSide], schema: TableSchema, extent: Extent
) -> Differing:
    version = schema.version()
    columns = ColumnFilter(request.settings.column_include, request.settings.column_exclude)
    hidden = {index for index, each in enumerate(version.columns) if each.generated in HIDDEN}
    kept_columns = [int(index) for index in columns.kept(version) if int(index) not in hidden]
    lake = _lake(request, version, kept_columns)
    merged = request.merged or DestinationMerged(request.directory, say=request.say)
    if not lake.exists and (result := _without_lake(sides[0], schema, lake, merged, extent)) is not None:
        return Differing(result=result)
    # A table without a key is compared at a position of the source's binlog, so its rows must be read from the source itself.
    has_key = bool(request.settings.table(version.database, version.table).key or version.key)
    side = sides[1] if has_key else sides[0]
    planned = plan(version, kept_columns, request.settings, lake.columns(), whole_doubles=side.whole_doubles)
    kept = KeptSums(request.directory)
    known = kept.get(planned, lake.table_id) if planned.key else None
    with tempfile.TemporaryDirectory(prefix="sluice-equal-") as folder:
        shown = VisibleSource(source=request.source, table=version, directory=request.directory, say=request.say)
        # Before rows are compared again, `visible` waits until reads of the source show every change that the lake has. A `ReaderSide`,
        # which reads a replica, needs no `visible`, because it waits itself.
        visible = shown.wait if side is sides[0] else (lambda _: True)
        comparison = Comparison(planned, side, lake, merged, extent=extent, folder=folder, visible=visible)
        if extent.mode == "since-last" and known:
            found = comparison.run(known[0], _changed(known[1]))
        else:
            found = comparison.run(None, _sample(extent) if planned.key and extent.mode == "sample" else None)
    if planned.key:
        compared = set(found.compared)
        kept.keep(planned, lake.table_id, found.chunks, found.equal_sums, compared=compared)
    scope = Scope(planned.key_columns, found.keys) if found.keys else None
    return Differing(result=found.result, scope=scope)


def _lake(request: ComparedDestination, version: TableVersion, kept: Sequence[int]) -> LakeSide:
    """Opens the Delta table to compare: the current-state table, or the history if the captured table has no current-state table. Raises
    RefusedError if conf/ configures only a change log, or leaves out rows.
    """
    refuse_log_alone(version, request.settings)
    refuse_left_out_rows(version, request.settings.table(version.database, version.table))
    path = request.config.kept_path(request.name, version.database, version.table)
    if request.settings.table(version.database, version.table).current_state:
        shard = request.settings.shard(version.database, version.table)
        rows = (shard.column, shard.name) if shard else None
        return LakeSide(version.name, path, request.storage_options, rows)
    return HistorySide(version.name, path, request.storage_options, expected_types(version, kept, request.settings))


def _without_lake(
    side: SourceSide, schema: TableSchema, lake: LakeSide, merged: Merged, extent: Extent
) -> TableResult | None:
    """Returns the result for a captured table for which no Delta table exists: EQUAL if the table has no rows in the source. If it has
    rows, waits until the lake has merged everything up to the position of the count. Returns None if `lake` exists afterwards. Otherwise
    the verdict is DIFFERENT, or UNDECIDED if merges did not reach this position.
    """
    rows = side.row_count(schema.database, schema.table)
    end, verdict, reason = side.end(), Verdict.EQUAL, ""
    if rows:
        is_merged = merged.wait(end, extent.settle_seconds)
        lake.refresh()
        if lake.exists:
            return None
        verdict = Verdict.DIFFERENT if is_merged else Verdict.UNDECIDED
        reason = (
            f"no Delta table exists at {lake.path}, and the table in the source has rows: read these rows "
            "with `sluice snapshot start`"
            if is_merged
            else f"no Delta table exists at {lake.path} yet. The source was read up to {end}, and the lake has {merged.progress()}"
            f"{f', and {why}' if (why := merged.halted()) else ''}: the rows of the source may be changes that are not merged yet. "
            "`sluice status` shows what delays the merges"
        )
    return TableResult(
        table=lake.name,
        verdict=verdict,
        reason=reason,
        mode=extent.mode,
        rows=rows,
        difference_count=rows if verdict is Verdict.DIFFERENT else 0,
        server_uuid=end.server_uuid,
        position=str(end),
        gtid_set=end.gtid_set,
        checked_at_us=time.time_ns() // 1000,
    )


def _changed(before: Sums) -> Choose:
    """Returns a function that selects the chunks that may have changed in the lake since they were last found equal. `before` has the
    lake's sum of each chunk at that time. A chunk is selected if its current sum differs from its sum in `before`, or if `before` does not
    have the chunk.
    """

    def choose(chunks: Chunks, now: Sums) -> Collection[int]:
        return {number for number in range(chunks.count) if before.get(number) != now.get(number, NO_ROWS)}

    return choose


def _sample(extent: Extent) -> Choose:
    """Returns a function that selects `extent.percent` of the chunks at random, at least one."""

    def choose(chunks: Chunks, _: Sums) -> Collection[int]:
        wanted = max(1, min(chunks.count, round(chunks.count * extent.percent / 100)))
        return random.sample(range(chunks.count), wanted)

    return choose
