"""Implements `sluice history`: lists the batches that changed a table, and the commits of other writers. Reads the table's Delta log, not
Dagster's storage. For each batch, shows the interval of the stream (positions, GTIDs and commit times), the number of changes by kind, and
the versions of the Delta table before and after the batch.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.gtid import is_mariadb, parse_executed
from sluice.cdc_engine.position import file_number, position_text
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.console.source.query import require_destination
from sluice.console.toolchain.errors import SetupError
from sluice.orchestration.base.lake_settings import storage_options
from sluice.spark_jobs.errors import unreadable_log
from sluice.spark_jobs.tables.commit_record import MAINTENANCE_KIND, CommittedInterval, batches, read_commit

_POSITION = re.compile(r"(?P<file>[^:@\s]+\.\d+):(?P<offset>\d+)(?:@(?P<epoch>\d+))?")
Match = Callable[[CommittedInterval], bool]


@dataclasses.dataclass(frozen=True)
class HistoryTable:
    """A captured table and its path in the lake. `key` are the columns by which rows are merged, or empty for a table without a key.
    `current_state` says whether the Delta table at `path` is a current-state table.
    """

    destination: str
    name: str
    path: str
    key: tuple[str, ...]
    storage_options: dict[str, str]
    current_state: bool = True
    # Name of the shard column → its value in the rows of this source table. Empty if the table is not a shard.
    shard: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def is_concerned_by(self, commit: CommittedInterval) -> bool:
        """Returns whether a commit may have changed rows of this source table. Returns False only for a commit that Sluice made for another
        shard of the Delta table.
        """
        return not self.shard or (commit.table, commit.destination) in {("", ""), (self.name, self.destination)}

    def log(self, version: int | None = None) -> Any:
        """Returns the Delta table in a version, or in the newest version if `version` is None. Raises SetupError if the table does not
        exist or cannot be read.
        """
        try:
            return deltalake.DeltaTable(self.path, version=version, storage_options=self.storage_options or None)
        except TableNotFoundError as error:
            raise SetupError(
                f"{self.name} has no Delta table at {self.path} yet: wait until its first changes are merged"
            ) from error
        except (DeltaError, OSError) as error:
            raise SetupError(unreadable_log(self.path, error)) from error


def captured_table(config: SluiceConfig, name: str, destination: str = "") -> HistoryTable:
    """Returns the captured table `name` ("database.table"). If `destination` is not empty, looks only at the tables of this destination.
    Raises ConfigurationError if the destination does not exist, no destination captures the table, or several destinations do.
    """
    if destination:
        require_destination(config, destination)
    found = {
        each: table
        for each in ([destination] if destination else sorted(config.destinations))
        for table in read_tables(config.destination_dir(each))
        if table.name == name
    }
    if len(found) != 1:
        who = f"destinations {', '.join(found)} capture" if found else "no destination captures"
        more = "; name one with --destination" if found else "; `sluice schema show NAME` lists tables"
        raise ConfigurationError(f"{who} the table {name!r}{more}")
    ((owner, table),) = found.items()
    settings = config.destinations[owner].table(table.database, table.table)
    path = config.kept_path(owner, table.database, table.table)
    key, options = tuple(settings.key) or table.key, storage_options(config.storage_options)
    shard = config.destinations[owner].shard(table.database, table.table)
    rows = {shard.column: shard.name} if shard else {}
    return HistoryTable(owner, name, path, key, options, current_state=settings.current_state, shard=rows)


def history_of(table: HistoryTable) -> list[CommittedInterval]:
    """Returns the batches in a table's Delta log, and the commits of other writers, newest first."""
    commits = (read_commit(commit) for commit in table.log().history())
    return batches(commit for commit in commits if table.is_concerned_by(commit))[::-1]


def at(history: Sequence[CommittedInterval], text: str) -> list[CommittedInterval]:
    """Returns the entries of `history` that `text` selects, or an empty list if there are none. `history` has the batches of a table
    and the commits of other writers, newest first. `text` is a version of the Delta table, FILE:OFFSET, a GTID, or a time in ISO form,
    which is in UTC if it has no zone.

    A version, an offset or a GTID selects the entry that contains it. A time selects the newest batch that has a change which the source
    committed at or before this time. Raises ConfigurationError for any other text.
    """
    if text.isdigit():
        version = int(text)
        return [each for each in history if each.version_before < version <= each.version]
    if position := _POSITION.fullmatch(text):
        return [each for each in history if each.streamed and _contains(each, position)][:1]
    if match := _gtid(text):
        return [each for each in history if each.streamed and match(each)]
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is not a version, FILE:OFFSET, GTID or time in ISO form") from None
    time_us = int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1_000_000)
    return [each for each in history if each.streamed and 0 < each.first_commit_time_us <= time_us][:1]


def _contains(interval: CommittedInterval, position: re.Match[str]) -> bool:
    """Returns whether a position is after the start of an interval and not after the interval's end. Returns False if the position names
    another epoch than that of the interval.
    """
    wanted = file_number(position["file"]), int(position["offset"])
    if position["epoch"] is not None and int(position["epoch"]) != interval.epoch:
        return False
    return _file_and_offset(interval.start) < wanted <= _file_and_offset(interval.end)


def _file_and_offset(position: Any) -> tuple[int, int]:
    file = str(position.get("file") or "")
    return (file_number(file) if file else 0), int(position.get("offset") or 0)


def _gtid(text: str) -> Match | None:
    """Returns a function that returns whether an interval contains the GTID `text`. Returns None if `text` is not a GTID. Treats 2026-03-01
    as a date, although it has the form of a GTID of MariaDB.
    """
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text) or not re.fullmatch(
        r"[0-9a-fA-F-]{36}(:[a-z_]\w*)?:\d+|\d+-\d+-\d+", text
    ):
        return None
    mariadb = is_mariadb(text)
    try:
        wanted: Any = parse_executed(text, mariadb=mariadb)
    except ValueError:
        return None

    def executed(position: Mapping[str, Any]) -> Any:
        """Returns the executed set of a position. The set of a server of the other kind, MySQL or MariaDB, counts as empty."""
        found = str(position.get("gtid_set") or "")
        return parse_executed(found if is_mariadb(found) == mariadb else "", mariadb=mariadb)

    def match(interval: CommittedInterval) -> bool:
        return bool(executed(interval.end).contains(wanted) and not executed(interval.start).contains(wanted))

    return match


def render(history: Sequence[CommittedInterval]) -> Table:
    shown = Table(
        "versions",
        "committed (UTC)",
        "batch",
        "changes",
        "rows in Delta",
        "from",
        "to",
        "source committed (UTC)",
        "run",
    )
    for each in history:
        shown.add_row(
            f"{each.version_before} → {each.version}",
            moment(each.committed_at_us),
            _operation_of(each),
            _changes(each),
            f"+{each.rows_inserted} ~{each.rows_updated} -{each.rows_deleted}",
            position_text(each.start),
            position_text(each.end),
            f"{moment(each.first_commit_time_us)} to {moment(each.last_commit_time_us)[11:]}" if each.ours else "",
            each.run[:8],
        )
    return shown


def _operation_of(interval: CommittedInterval) -> str:
    """Returns the text of the column `batch`: "another writer", "maintenance", the kind and id of a snapshot, backfill or repair, or
    the delivery number of a batch.
    """
    if not interval.ours:
        return "another writer"
    if interval.kind == MAINTENANCE_KIND:
        return interval.kind
    if interval.backfill:
        return f"{interval.kind} {interval.backfill}"
    return f"snapshot {interval.snapshot}" if interval.snapshot else str(interval.delivery)


def _changes(interval: CommittedInterval) -> str:
    if not interval.ours or interval.kind == MAINTENANCE_KIND:
        return interval.operation
    if interval.snapshot:
        return "rows read by a snapshot"
    changes = f"+{interval.inserts} ~{interval.updates} -{interval.deletes}"
    return changes if interval.kind == "changes" else f"{interval.kind}: {changes}"


def moment(time_us: int) -> str:
    """Converts µs since 1970 to a text such as "2026-03-01 12:00:00", in UTC. Returns "" for 0, an unknown time."""
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S") if time_us else ""
