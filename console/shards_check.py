"""Checks, for `sluice check`, whether the settings `shards` in conf/ fit the tables that engines have recorded."""

from __future__ import annotations

from collections import defaultdict

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.table_meta.table_list.reading import read_tables


def shards_sentence(config: SluiceConfig) -> str:
    """Returns a sentence that lists each Delta table that shards become, with the recorded source tables that are its shards."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, table in _known(config):
        database, _, short = table.partition(".")
        if shard := config.destinations[name].shard(database, short):
            found[shard.into].append(f"{shard.name!r} ({table} of {name})")
    sentences = [f"{into} has {', '.join(sorted(shards))}" for into, shards in sorted(found.items())]
    return f"shards that become one table: {'; '.join(sentences) or 'none'}"


def shards_problems(config: SluiceConfig) -> list[str]:
    """Returns a message for each shard that has a column with the same name as the shard column of the common Delta table. The engine would
    stop this shard.
    """
    problems = []
    for name, destination in sorted(config.destinations.items()):
        for table in read_tables(config.destination_dir(name)):
            shard = destination.shard(table.database, table.table)
            taken = shard and any(column.name.lower() == shard.column.lower() for column in table.columns)
            if shard and taken:
                problems.append(
                    f"{table.name} of {name} has a column {shard.column}, which conf/ uses for the name of "
                    f"the shard: set another `column` under `shards` in conf/destinations/{name}.yaml"
                )
    return problems


def shards_warnings(config: SluiceConfig) -> list[str]:
    """Returns a message for each pattern in `shards` that matches none of the destination's captured tables. Leaves out destinations whose
    captured tables are not known yet. Without the message, nobody would notice a wrong pattern: the tables that it should match would get
    separate Delta tables.
    """
    return [
        (
            f"no captured table of {name} matches the pattern {rule.tables!r} of `shards`: correct the pattern, "
            "or ignore this until the table is created"
        )
        for name, destination in sorted(config.destinations.items())
        for rule in destination.shards
        if (known := [table for owner, table in _known(config) if owner == name])
        and not any(rule.of(name, *table.split(".", 1)) for table in known)
    ]


def _known(config: SluiceConfig) -> list[tuple[str, str]]:
    """Returns the captured tables that are recorded, as (destination, "database.table")."""
    return [
        (name, table.name)
        for name in sorted(config.destinations)
        for table in read_tables(config.destination_dir(name))
    ]
