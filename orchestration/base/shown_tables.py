"""Decides which tables of a destination have an asset of their own in Dagster. If a destination has thousands of tables, most of them share
one asset per database.

Every asset has a cost, even if nobody looks at it: memory in the code server, the webserver and the daemon, and an event per batch in
Dagster's storage. Definitions and the reports of runs use the same rule, so that events match the definitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import groupby

import dagster as dg

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.table_meta.table_list.reading import count_of_list
from sluice.orchestration.base.markdown import code
from sluice.orchestration.base.table_catalog import (
    DELTA_KINDS,
    SOURCE,
    defined_tables,
    delta_key,
    group_of,
    owners_of,
)

# The middle parts of a shared asset's key, which has four parts. The key of a lake table's own asset has two or three parts, so the two
# kinds of keys never collide.
OTHER_TABLES = ("other", "tables")
LISTED_MAX = 5000  # The description of a shared asset lists at most this many tables.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownTables:
    """Decides which tables have an asset of their own. If not `grouped`, every table has one. If `grouped`, only the tables in `named`
    ("database.table") have one, and the other tables of a database share one asset. `named` are the tables with an entry in `tables` of
    conf/ or with a freshness policy.
    """

    destination: str
    grouped: bool
    named: frozenset[str]

    def has_asset(self, name: str) -> bool:
        """Returns True if a "database.table" has an asset of its own. Returns False if it shares an asset with other tables of its
        database.
        """
        return not self.grouped or name in self.named

    def own(self, tables: Iterable[TableVersion]) -> tuple[TableVersion, ...]:
        return tuple(table for table in tables if self.has_asset(table.name))

    def others(self, tables: Iterable[TableVersion]) -> dict[str, tuple[TableVersion, ...]]:
        """Returns, for each database, the tables that share its asset, sorted by name."""
        left = sorted((each for each in tables if not self.has_asset(each.name)), key=lambda each: each.name)
        return {name: tuple(found) for name, found in groupby(left, key=lambda each: each.database)}

    def key(self, name: str) -> dg.AssetKey:
        """Returns the key of the asset in which Dagster shows a "database.table" of the lake."""
        if self.has_asset(name):
            return delta_key(self.destination, name)
        return others_key(self.destination, name.partition(".")[0])


def shown_tables(config: SluiceConfig, destination: str) -> ShownTables:
    """Returns the rule that decides which tables of a destination have their own asset. The rule depends on the number of tables in the
    list from which the definitions are built. Raises MetaError if the list cannot be read.
    """
    settings, tables = config.destinations[destination], defined_tables(config, destination)
    # A table with a freshness policy needs an asset of its own, even if it has no entry in `tables`. A shard, for example, cannot have an
    # entry.
    fresh = [each.name for each in tables if settings.table(each.database, each.table).fresh_within_minutes]
    return ShownTables(
        destination=destination,
        grouped=len(tables) > settings.table_assets_max,
        named=frozenset({*settings.tables, *fresh}),
    )


def grouped_now(config: SluiceConfig, destination: str) -> bool:
    """Returns whether the engine's current list of captured tables is so long that several tables share one asset. The sensor then requests
    runs that select no assets, even if the definitions of the code server still have an asset for each table.

    The reason: most runs build their definitions from the code server's copies of the lists (`table_catalog`). But runs on another host,
    and runs of Dagster's own code server, have no copies and use the engine's current list. If this list has too many tables, the merge job
    of such a run has no assets, and Dagster refuses a run that selects assets.
    """
    try:
        count = count_of_list(config.destination_dir(destination)) or 0
    except MetaError:  # The definitions report this error.
        return False
    return count > config.destinations[destination].table_assets_max


def others_key(destination: str, database: str) -> dg.AssetKey:
    """Returns the key of the asset that tables of a database share in the lake."""
    return dg.AssetKey([destination, *OTHER_TABLES, database])


def others_source_key(destination: str, database: str) -> dg.AssetKey:
    """Returns the key of the external asset that tables of a database share in the source."""
    return dg.AssetKey([SOURCE, *others_key(destination, database).path])


def others_specs(config: SluiceConfig, shown: ShownTables, tables: Sequence[TableVersion]) -> list[dg.AssetSpec]:
    """Returns the specs of the shared assets, in the source and in the lake. Nobody can materialize a shared asset in Dagster's UI."""
    settings, specs = config.destinations[shown.destination], list[dg.AssetSpec]()
    for database, found in shown.others(tables).items():
        source, owners = others_source_key(shown.destination, database), owners_of(settings)
        described = {
            "tables": dg.MetadataValue.int(len(found)),
            "table_of_contents": dg.MetadataValue.md(_contents(found)),
        }
        specs.append(
            dg.AssetSpec(
                source,
                group_name=f"{group_of(settings)}_source",
                owners=owners,
                kinds={"mysql"},
                description=f"{len(found)} tables of {database} in the source of {shown.destination}.",
            )
        )
        specs.append(
            dg.AssetSpec(
                others_key(shown.destination, database),
                deps=[source],
                group_name=group_of(settings),
                owners=owners,
                kinds=DELTA_KINDS,
                description=(
                    f"{len(found)} tables of {database} in the source of {shown.destination}. The destination has more than "
                    f"{settings.table_assets_max} tables (`table_assets_max`), so tables without an entry in `tables` of conf/ share "
                    "this asset. Each batch reports which of these tables it changed."
                ),
                metadata=described,
            )
        )
    return specs


def _contents(tables: Sequence[TableVersion]) -> str:
    lines = [
        f"- {code(table.table)}: {len(table.columns)} columns, "
        + (f"keyed by {', '.join(map(code, table.key))}" if table.key else "without a key")
        for table in tables[:LISTED_MAX]
    ]
    left = len(tables) - LISTED_MAX
    return "\n".join([*lines, *([f"- and {left} more"] if left > 0 else [])])
