"""Builds a past state of one table as a separate Delta table that people can inspect or compare (`sluice backfill --into`).

The live table is the Delta table into which runs merge the changes. The build starts from the newest version of the live table that has no
change after the interval's start. To this version, the build applies the stream's changes up to the interval's end. The build neither
writes the live table nor takes the run lock, so merges continue.
"""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError, PositionLostError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.time_text import time_text
from sluice.orchestration.base.lake_settings import lake_errors, storage_options, target

if TYPE_CHECKING:
    from sluice.cdc_engine.config import DestinationConfig
    from sluice.cdc_engine.instance.rows.interval import BinlogInterval
    from sluice.cdc_engine.instance.rows.rules import RequestedInterval
    from sluice.cdc_engine.instance.rows.work import BackfillReading
    from sluice.orchestration.run.rows.request import BackfillRequest, RowsListener
    from sluice.spark_jobs.tables.commit_record import CommittedInterval
    from sluice.spark_jobs.tables.delta_table import DeltaTable

NAME = re.compile(r"[^./\s]+\.[^./\s]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RebuiltTable:
    """The Delta table `table` that `run_into` has built. `of` is the captured table whose past state it has. `version` is the version of
    the captured table's Delta table from which the build started. `up_to` is the source's position up to which the new table has changes.
    """

    table: str
    of: str
    path: str
    version: int
    up_to: str
    rows: int


def interval_of(request: BackfillRequest) -> RequestedInterval:
    """Returns the interval of the binlog that a request names."""
    from sluice.cdc_engine.instance.rows.rules import RequestedInterval  # noqa: PLC0415  imports the engine's packages

    return RequestedInterval(
        from_us=request.from_us,
        to_us=request.to_us,
        gtids=request.gtids,
        tables=request.tables,
        archive=request.archive,
        schemas=request.schemas,
        past=bool(request.into),
        between=request.between,
    )


def path_of(config: SluiceConfig, request: BackfillRequest) -> str:
    """Returns the path of the table to build. Raises ConfigurationError if the request is invalid. The message says what to request
    instead.
    """
    if len(request.tables) != 1:
        raise ConfigurationError("--into builds one table: name the captured table with --tables DATABASE.TABLE")
    if not NAME.fullmatch(request.into):
        raise ConfigurationError(f"--into {request.into!r} is not of the form DATABASE.TABLE")
    if not config.destinations[request.destination].table(*request.tables[0].split(".", 1)).current_state:
        raise ConfigurationError(
            f"{request.tables[0]} has no current-state table from which a past state could be built: query "
            "its history or its change log instead (`sluice sql`)"
        )
    if target(config, request.destination, request.tables[0]).shard is not None:
        raise ConfigurationError(
            f"no past state of {request.tables[0]} can be built: it is a shard, and its Delta table has rows of other "
            "shards. Query earlier versions of the Delta table with time travel"
        )
    database, _, table = request.into.partition(".")
    path = config.table_path(request.destination, database, table)
    if path in _taken(config):
        raise ConfigurationError(
            f"--into {request.into} has the same path as a captured table, or as its change log or history; name "
            "another table"
        )
    return path


def _taken(config: SluiceConfig) -> set[str]:
    """Returns the paths that the table to build must not have: those of the captured and configured tables of all destinations, and of
    their change logs and histories.
    """
    from sluice.cdc_engine.table_meta.table_list.reading import read_tables  # noqa: PLC0415

    found = set()
    for name, destination in config.destinations.items():
        known = {each.name for each in read_tables(config.destination_dir(name))}
        for each in known | destination.tables.keys():
            database, _, table = each.partition(".")
            path = config.table_path(name, database, table)
            found |= {path, f"{path}__log", f"{path}__history"}
    return found


def run_into(
    config: SluiceConfig, request: BackfillRequest, listener: RowsListener, folder: Path
) -> tuple[BackfillReading, RebuiltTable]:
    """Builds the past state that `request` names: reads the changes of the table from the binlog, and applies them to a version of its
    Delta table. Raises SluiceError or MergeFailedError, with a message for users, if the past state cannot be built.
    """
    from sluice.cdc_engine.instance.rows.work import BackfillReading  # noqa: PLC0415  imports the engine's packages

    path, directory = path_of(config, request), config.destination_dir(request.destination)
    chosen: list[CommittedInterval] = []

    def find(given: DestinationConfig, ledger: Any, wanted: RequestedInterval) -> BinlogInterval:
        return _from_a_version(config, request, (given, ledger, wanted), chosen)

    with lake_errors(config):
        reading = BackfillReading(
            config.destinations[request.destination],
            directory,
            interval_of(request),
            folder,
            now_us=time.time_ns() // 1000,
            progress=listener.progress,
            find=find,
        )
        reading.read()
        (base,) = chosen
        listener.say(
            f"the binlog was read from {reading.interval.begin} to {reading.read_to}, to build the past state from version "
            f"{base.version} of {request.tables[0]}"
        )
        return reading, _build(config, request, reading, base, (path, folder))


def _from_a_version(
    config: SluiceConfig, request: BackfillRequest, arguments: Any, chosen: list[CommittedInterval]
) -> BinlogInterval:
    """Chooses the version of the table's Delta table from which the past state is built (`base_of`), and adds it to `chosen`. Returns the
    requested interval with another start: the position from which changes are applied to this version. `arguments` are the destination's
    settings, its ledger and the interval of the request.

    The start is the position up to which the version has the stream's changes. If the binlog file of this position is not available, the
    start may be later: the requested start, or the cursor if the cursor is earlier. A later start is possible only if the stream has made
    no commit after this version, and the table is not stopped and has no open snapshot. Then no change is left out.

    Raises ConfigurationError if there is no suitable version, and PositionLostError if the binlog file of the start is not available.
    """
    from sluice.cdc_engine.instance.rows.interval import is_followed, locate_interval  # noqa: PLC0415
    from sluice.spark_jobs.tables.commit_record import batches, read_commit  # noqa: PLC0415

    interval, ledger, directory = locate_interval(*arguments), arguments[1], config.destination_dir(request.destination)
    live = _live(config, request, ledger.ledger_id)
    commits = batches(read_commit(commit) for commit in live.commits_after(-1))
    base = base_of(commits, ledger.ledger_id, wholly_merged(interval.begin, interval.cursor, ledger.again_up_to))
    if base is None:
        raise ConfigurationError(
            f"{request.tables[0]} has no version from {time_text(request.from_us)} or before in its Delta log: use a later --from"
        )
    begin = Position.from_json(dict(base.end))
    _refuse_earlier_settings(config, request, base, begin)
    if begin.file not in {log.file for log in interval.files.logs}:
        quiet = after_a_quiet_time(commits, base, interval.begin, interval.cursor)
        begin = quiet if quiet is not None and is_followed(ledger, directory, base.table) else begin
    interval.reach(begin.file)
    if begin.file not in {log.file for log in interval.files.logs}:
        raise PositionLostError(
            f"the past state would be built from version {base.version} of {request.tables[0]} and the binlog from {begin} on, "
            f"and {interval.files.origin} does not have the file {begin.file}: use a later --from"
        )
    chosen.append(base)
    return dataclasses.replace(interval, begin=begin)


def _refuse_earlier_settings(
    config: SluiceConfig, request: BackfillRequest, base: CommittedInterval, end: Position
) -> None:
    """Raises ConfigurationError if the rows of the version `base` were made with other settings than conf/ has now. The build would apply
    changes under the present settings to these rows. `end` is the position up to which the version has changes.
    """
    from sluice.cdc_engine.instance.tables.filter_change import has_earlier_settings  # noqa: PLC0415
    from sluice.spark_jobs.tables.commit_record import SNAPSHOT_KIND  # noqa: PLC0415

    destination, directory = config.destinations[request.destination], config.destination_dir(request.destination)
    (name,) = request.tables
    if has_earlier_settings(destination, directory, name, end, is_published=base.kind == SNAPSHOT_KIND):
        raise ConfigurationError(
            f"the past state of {name} would be built from version {base.version} of its Delta table, and settings of the table in conf/ "
            "have changed since then (for example filters, masks, converted types or soft deletes), so the rows would follow different "
            "settings: use a --from after the re-snapshot of the table that followed the change, or query earlier versions of the Delta "
            "table with time travel"
        )


def wholly_merged(begin: Position, *ends: Position | None) -> Position:
    """Returns `begin`, the start of the requested interval, or an earlier position if the lake does not yet have all batches up to `begin`.
    The lake has whole batches up to the last of the positions `ends`. A later batch is in flight, and may be merged in part.
    """
    last = max((each for each in ends if each is not None), key=lambda each: each.order_key)
    return min(begin, last, key=lambda each: each.order_key)


def after_a_quiet_time(
    commits: list[CommittedInterval], base: CommittedInterval, begin: Position, cursor: Position
) -> Position | None:
    """Returns the position from which to read the binlog if the table has not changed since its version `base`: `begin`, the start of the
    requested interval, or the cursor if the cursor is earlier. Returns None if `commits` has a later commit of the stream than `base`.
    """
    later = [each for each in commits if each.streamed and each.ledger == base.ledger and each.version > base.version]
    return None if later else min(begin, cursor, key=lambda each: each.order_key)


def base_of(history: list[CommittedInterval], ledger_id: str, begin: Position) -> CommittedInterval | None:
    """Returns the newest batch or publication in `history` whose end is not after the position `begin`, or None if there is none. Considers
    only batches and publications of the ledger `ledger_id`, in the epoch of `begin`.

    Leaves out a batch whose run was killed between two commits of the table, because the table then lacks changes before the batch's end.
    Such a batch was delivered again, so `history` has a later batch with the same start.
    """
    ours = [each for each in history if each.streamed and each.ledger == ledger_id and each.end]
    begun = set()
    for each in reversed(ours):
        # Remembers the starts in a set, instead of comparing each commit with all others, because a log may have 100,000 commits.
        start = tuple(sorted(each.start.items()))
        if each.delivery and start in begun:
            continue
        if each.delivery:
            begun.add(start)
        if _is_before(Position.from_json(dict(each.end)), begin):
            return each
    return None


def _is_before(end: Position, begin: Position) -> bool:
    return end.epoch == begin.epoch and end.order_key <= begin.order_key


def _live(config: SluiceConfig, request: BackfillRequest, ledger_id: str) -> DeltaTable:
    from sluice.spark_jobs.staged_batch import app_id_of  # noqa: PLC0415
    from sluice.spark_jobs.table_owner import Owner  # noqa: PLC0415
    from sluice.spark_jobs.tables.delta_table import DeltaTable  # noqa: PLC0415

    (name,) = request.tables
    owner = Owner(ledger_id=ledger_id, destination=request.destination, table=name)
    path = target(config, request.destination, name).path
    table = DeltaTable(name, path, app_id_of(owner), storage_options(config.storage_options))
    if not table.refresh().exists:
        raise ConfigurationError(f"{name} has no Delta table at {path} yet: wait until its first changes are merged")
    return table


def _build(
    config: SluiceConfig,
    request: BackfillRequest,
    reading: BackfillReading,
    base: CommittedInterval,
    where: tuple[str, Path],
) -> RebuiltTable:
    from sluice.spark_jobs.backfill.into import PastState, build  # noqa: PLC0415
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.rows.fold import folded  # noqa: PLC0415
    from sluice.spark_jobs.staged_files.read import read_staged_batch  # noqa: PLC0415

    (name,), (path, folder) = request.tables, where
    tables = [table for batch in reading.staged for table in read_staged_batch(batch.path).tables if table.name == name]
    segments = [segment for table in tables for segment in table.changes]
    position = reading.end
    up_to = position.order_key
    past = folder / "past.parquet"
    images = folded(name, segments, past, up_to, changed_in=((-1, up_to),)).segment if segments else None
    at = f"{position} ({time_text(request.to_us)})" if request.to_us is not None else str(position)
    comment = (
        f"{name} as it was at {at}: version {base.version} and later changes, built by `sluice backfill --into`. "
        "Sluice does not write to this table again."
    )
    live = _live(config, request, base.ledger)
    rows = build(
        PastState(
            name=name,
            base=live.at(base.version).log,
            images=images,
            key=segments[0].key if segments else (),
            path=path,
            description=comment,
            folder=folder,
            record={"past_of": name, "ledger": base.ledger, "version": base.version, "up_to": position.to_json()},
            storage_options=storage_options(config.storage_options),
        ),
        Fence(
            lambda: (
                ""
                if folder.is_dir()
                else f"another backfill has removed {folder}, to which this backfill wrote: start the backfill again"
            )
        ),
    )
    return RebuiltTable(table=request.into, of=name, path=path, version=base.version, up_to=str(position), rows=rows)
