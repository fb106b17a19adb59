"""Finds in the logs of the Delta tables which changes a Dagster run merged, so that a backfill can apply these changes again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.cdc_engine.time_text import SECOND_US
from sluice.orchestration.base.lake_settings import lake_errors, storage_options
from sluice.orchestration.run.rows.request import BackfillRequest

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.spark_jobs.tables.commit_record import CommittedInterval


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedRun:
    """The interval of the changes that a run merged into `tables`.

    - `from_us` and `to_us` limit the commit times of the changes in the source, in microseconds since 1970. `to_us` itself is excluded.
    - `between` has two positions: the changes are after the first one, and up to the second one. It is None if the run merged changes of
      several epochs, or if a commit of the run does not record its positions.
    """

    from_us: int
    to_us: int
    tables: tuple[str, ...]
    between: tuple[Position, Position] | None = None


def backfill_of_run(
    config: SluiceConfig, destination: str, run: str, tables: tuple[str, ...], into: str = ""
) -> BackfillRequest:
    """Returns a request for a backfill that applies again what the run `run` merged into `tables`, or into any captured table if `tables`
    is empty. `into` is passed on to the request. Raises ConfigurationError if a table is not captured, or if no Delta log has a batch of
    the run. Raises MergeFailedError if a Delta log cannot be read.
    """
    captured = [each.name for each in read_tables(config.destination_dir(destination))]
    if unknown := sorted(set(tables) - set(captured)):
        raise ConfigurationError(
            f"{', '.join(unknown)}: these tables are not captured; `sluice schema show {destination}` lists the captured tables"
        )
    found = interval_of_run({name: _history(config, destination, name) for name in tables or captured}, run)
    return BackfillRequest(
        destination=destination,
        from_us=found.from_us,
        to_us=found.to_us,
        tables=found.tables,
        into=into,
        between=found.between,
    )


def interval_of_run(histories: Mapping[str, Sequence[CommittedInterval]], run: str) -> MergedRun:
    """Returns the interval that a run merged from the stream, and the tables into which the run merged changes. `histories` has the commits
    of each table. Raises ConfigurationError if the run made none of these commits.
    """
    merged = {
        name: found
        for name, history in histories.items()
        if (found := [each for each in history if each.streamed and each.run == run and each.first_commit_time_us])
    }
    if not merged:
        raise ConfigurationError(
            f"no Delta log of the requested tables has a batch of the run {run!r}: `sluice history DATABASE.TABLE --json` shows the "
            "runs of a table"
        )
    every = [each for found in merged.values() for each in found]
    last_us = max(each.last_commit_time_us for each in every)
    return MergedRun(
        from_us=min(each.first_commit_time_us for each in every),
        # Backfills treat a commit time in whole seconds as the last moment of its second, because some servers log no fractions.
        to_us=last_us + (1 if last_us % SECOND_US else SECOND_US),
        tables=tuple(sorted(merged)),
        between=_between(every),
    )


def _between(commits: Sequence[CommittedInterval]) -> tuple[Position, Position] | None:
    """Returns the first start and the last end of the commits. Returns None if a commit has no positions, or if the positions are of
    several epochs.
    """
    found = [record for each in commits for record in (each.start, each.end)]
    if not all({"epoch", "file", "offset"} <= record.keys() for record in found):
        return None
    ordered = sorted((Position.from_json(dict(record)) for record in found), key=lambda each: each.order_key)
    return (ordered[0], ordered[-1]) if ordered[0].epoch == ordered[-1].epoch else None


def _history(config: SluiceConfig, destination: str, name: str) -> list[CommittedInterval]:
    """Returns the batches in a table's Delta log. Returns [] if nothing was merged into the table yet."""
    from sluice.spark_jobs.tables.commit_record import batches, read_commit  # noqa: PLC0415  imported where it is used
    from sluice.spark_jobs.tables.delta_table import DeltaTable  # noqa: PLC0415

    database, _, table = name.partition(".")
    path = config.kept_path(destination, database, table)
    with lake_errors(config):
        log = DeltaTable(name, path, "", storage_options(config.storage_options))
        log.refresh()
        commits = [read_commit(commit) for commit in log.commits_after(-1)]
    shared = config.destinations[destination].shard(database, table) is not None
    return batches(each for each in commits if not shared or (each.table, each.destination) == (name, destination))
