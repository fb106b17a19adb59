"""Provides what a run needs to know about the tables that it writes: where and how each table is merged (its target), which paths clash,
and the locks of tables that several destinations write.

The paths of two tables clash if one path is inside the other, or if the paths are equal and the tables are not shards.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sluice.cdc_engine.config import clashing_tables
from sluice.cdc_engine.destination_files import LakeTables, StoredTableLock, installation_id
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.orchestration.base.lake_settings import target

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.contracts import TableVersion
    from sluice.spark_jobs.table_locks import TableLocks
    from sluice.spark_jobs.targets.report import TableTarget


_Clashes = tuple["SluiceConfig", dict[str, tuple["TableVersion", ...]], Mapping[tuple[str, str], str]]
# The newest result of `known_clashes`, with the conf/ and the lists of tables from which it was computed. It is kept, because a snapshot
# run needs it for each new table, and comparing the paths of thousands of tables takes longer than publishing a small table.
_newest_clashes: list[_Clashes | None] = [None]


def table_locks_of(config: SluiceConfig, destination: str, run: str = "") -> TableLocks:
    """Returns the table locks for one run. `run` is the run's id, or empty for a command. Processes that wait for a lock show which run
    holds it.
    """
    from sluice.spark_jobs.table_locks import TableLocks  # noqa: PLC0415  pyspark takes a second to import

    location = config.ledger_location(destination)

    def lock(path: str) -> StoredTableLock:
        return StoredTableLock(location, path.removeprefix(config.lake))

    who = f"run {run} of {destination}" if run else f"a run of {destination}"
    return TableLocks(lock=lock, who=who)


def written_target(config: SluiceConfig, destination: str) -> Callable[[str], TableTarget]:
    """Returns a function that finds the target of a "database.table" for a run that writes the table.

    The function raises MetaError if the store of the locks does not answer. The function calls that store only for shards, and checks for
    path clashes only if a table is about to be created, because an existing table keeps its path.
    """
    known: list[str] = []
    clashes: list[Mapping[tuple[str, str], str]] = []
    records = LakeTables(config.destination_dir(destination))

    def clash_of(found: TableTarget, name: str) -> str:
        if _is_made(found, name, records):
            return ""
        if not clashes:
            clashes.append(known_clashes(config))
        return clashes[0].get((destination, name), "")

    def find(name: str) -> TableTarget:
        found = target(config, destination, name)
        clash = clash_of(found, name)
        if found.shard is None:
            return dataclasses.replace(found, clash=clash)
        if not known:
            known.append(installation_id(config.ledger_location(destination)))
        return target(config, destination, name, locks=known[0], clash=clash)

    return find


def known_clashes(config: SluiceConfig) -> Mapping[tuple[str, str], str]:
    """Returns the path clashes between the tables that the engines listed: a reason for each pair of destination and "database.table".
    Leaves out a destination whose list cannot be read, because its engine reports the error.
    """
    tables: dict[str, tuple[TableVersion, ...]] = {}
    for name in config.destinations:
        with contextlib.suppress(MetaError):
            # While the list does not change, `read_tables` returns the same object, so the comparison with `newest` is fast.
            tables[name] = read_tables(config.destination_dir(name))
    newest = _newest_clashes[0]
    if newest is None or newest[0] is not config or newest[1] != tables:
        names = {destination: [table.name for table in listed] for destination, listed in tables.items()}
        newest = _newest_clashes[0] = (config, tables, clashing_tables(config, names))
    return newest[2]


def _is_made(found: TableTarget, name: str, records: LakeTables) -> bool:
    """Returns whether earlier runs have created all Delta tables of a source table."""
    side_tables = records.side_tables(name)
    wanted = {"log": found.change_log, "history": found.history}
    return all(kind in side_tables for kind, path in wanted.items() if path) and (
        not found.current_state or records.get(name) is not None
    )


def writers_of(config: SluiceConfig, destination: str, name: str) -> dict[str, tuple[str, ...]]:
    """Returns, by destination, the tables that are merged into the same Delta table as the table `name`. If `name` is not a shard, this is
    only `name` itself. Otherwise, these are all shards in this Delta table. VACUUM uses the result, because it must keep the files that
    consistent snapshots of all these destinations need. Raises MetaError if a record cannot be read.
    """
    own = target(config, destination, name)
    if not own.shared:
        return {destination: (name,)}
    names = {each: set(LakeTables(config.destination_dir(each)).names) for each in config.destinations}
    names[destination].add(name)
    sharing = {
        each: tuple(sorted(one for one in found if target(config, each, one).path == own.path))
        for each, found in names.items()
    }
    return {each: found for each, found in sharing.items() if found}
