"""Defines the assets of change logs and histories, and builds their materialization events.

The assets are external: the run that writes a table also writes its change log and history, and reports both as materialized.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import LakeTables
from sluice.orchestration.base.table_catalog import (
    DELTA_KINDS,
    LINEAGE_COLUMNS_MAX,
    default_key,
    defined_tables,
    delta_key,
    group_of,
    named,
    owners_of,
    source_key,
)
from sluice.orchestration.base.translation import Side, shown_spec

LOG, HISTORY = "log", "history"
DESCRIPTIONS = {
    LOG: "The change log of {table} in the source of {destination}: every change with the row before and after it.",
    HISTORY: "The history of {table} in the source of {destination}: every version of every row.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideAsset:
    """The asset of a change log or a history (`kind`: LOG or HISTORY). `of` is the captured table. `current_state` tells whether `of` has
    a current-state table.
    """

    destination: str
    of: str
    kind: str
    path: str
    current_state: bool

    @property
    def name(self) -> str:
        """The "database.table" of the change log or history, as in its path."""
        return f"{self.of}__{self.kind}"


def side_tables(
    config: SluiceConfig, destination: str, tables: Iterable[TableVersion]
) -> Mapping[str, tuple[SideAsset, ...]]:
    """Returns the change log and the history of each "database.table", if they have assets of their own.

    With `current_state: false`, the asset of the captured table itself stands for the history, or for the change log if there is no
    history. So this history or change log has no other asset. A change log or history also has no asset if a captured table has the same
    name.
    """
    captured = {table.name: table for table in tables}
    return {
        name: tuple(side for side in _sides(config, destination, table) if side.name not in captured)
        for name, table in captured.items()
    }


def _sides(config: SluiceConfig, destination: str, table: TableVersion) -> Iterable[SideAsset]:
    kept = config.kept_path(destination, table.database, table.table)
    log, history = config.side_table_paths(destination, table.database, table.table)
    current_state = config.destinations[destination].table(table.database, table.table).current_state
    for kind, path in ((LOG, log), (HISTORY, history)):
        if path and path != kept:
            yield SideAsset(destination=destination, of=table.name, kind=kind, path=path, current_state=current_state)


def side_specs(config: SluiceConfig, sides: Iterable[SideAsset]) -> list[dg.AssetSpec]:
    """Returns the specs of the assets of change logs and histories. Each asset is downstream of the current-state table, or of the source
    table if there is no current-state table.
    """
    return [_spec(config, side) for side in sides]


def _spec(config: SluiceConfig, side: SideAsset) -> dg.AssetSpec:
    settings, destination = config.destinations[side.destination], side.destination
    details: dict[str, Any] = {"dagster/uri": side.path}
    if config.catalog is not None:
        database, _, table = side.of.partition(".")
        details["dagster/table_name"] = ".".join(config.catalog_name(destination, database, table, side.kind))
    spec = dg.AssetSpec(
        default_key(destination, side.name),
        group_name=group_of(settings, side.of),
        owners=owners_of(settings, side.of),
        kinds=DELTA_KINDS,
        description=DESCRIPTIONS[side.kind].format(table=side.of, destination=destination),
        metadata=details,
    )
    upstream = delta_key(destination, side.of) if side.current_state else source_key(destination, side.of)
    return shown_spec(Side.LAKE, named(destination, side.name), spec).replace_attributes(deps=[upstream])


def side_events(
    sides: Sequence[SideAsset], columns: Sequence[tuple[str, str]], details: Mapping[str, dg.MetadataValue[Any]]
) -> list[dg.AssetMaterialization]:
    """Returns the materializations of the change log and the history that a run wrote together with a table. `columns` are those of the
    table, which the history has too. `details` is metadata of the write.
    """
    return [
        dg.AssetMaterialization(
            delta_key(side.destination, side.name),
            metadata={
                **details,
                "dagster/uri": dg.MetadataValue.text(side.path),
                **(_lineage(side, columns) if side.kind == HISTORY and side.current_state else {}),
            },
        )
        for side in sides
    ]


class WrittenSides:
    """Builds the events of change logs and histories that a snapshot, a repair or a backfill wrote. Each run has its own instance."""

    def __init__(self, config: SluiceConfig, destination: str) -> None:
        self._directory = config.destination_dir(destination)
        self._sides = side_tables(config, destination, defined_tables(config, destination))

    def events(
        self,
        table: str,
        columns: Sequence[tuple[str, str]],
        details: Mapping[str, dg.MetadataValue[Any]],
        kinds: Sequence[str] = (LOG, HISTORY),
    ) -> list[dg.AssetMaterialization]:
        """Returns the events for the change log and the history of a "database.table". `kinds` says which of the two the run writes. A
        change log or history that does not exist in the lake gets no event. Raises MetaError if the records of the lake cannot be read.
        """
        sides = [side for side in self._sides.get(table, ()) if side.kind in kinds]
        there = LakeTables(self._directory).side_tables(table) if sides else {}
        return side_events([side for side in sides if side.kind in there], columns, details)


def _lineage(side: SideAsset, columns: Sequence[tuple[str, str]]) -> dict[str, dg.MetadataValue[Any]]:
    key = delta_key(side.destination, side.of)
    there = columns[:LINEAGE_COLUMNS_MAX]
    dependencies = {name: [dg.TableColumnDep(asset_key=key, column_name=name)] for name, _ in there}
    schema = dg.TableSchema([dg.TableColumn(name=name, type=kind) for name, kind in there])
    return {
        "dagster/column_schema": dg.MetadataValue.table_schema(schema),
        "dagster/column_lineage": dg.MetadataValue.column_lineage(dg.TableColumnLineage(dependencies)),
    }
