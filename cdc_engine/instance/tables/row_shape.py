"""Defines which settings of conf/ shape the rows of a table, and whether a change of them makes rows in the lake wrong. Pure.

`filter_change` saves what `shape_of` returns with the table, and stops a table when `changed_settings` names a setting. Each setting of a
table and of a destination is classified below: a test fails for an unclassified one.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Mapping
from typing import Final

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.sink.column_filter import ColumnFilter

Shape = Mapping[str, str]  # Setting → its value in conf/, unless that is the default.


class ShapeEffect(enum.StrEnum):
    """The effect of a changed setting on rows that are already in the lake."""

    SHAPES_ROWS = "shapes rows"  #: The setting is part of `shape_of`. After a change the table is re-snapshotted.
    RULES = "rules"  #: After a change the table is re-snapshotted. `filter_change` compares digests of the rules.
    #: The setting selects the Delta table. After a change the table stops in TABLE_MISSING or TABLE_OWNED, by the last run's record.
    LOCATION = "location"
    NONE = "none"


OF_TABLE: Final[Mapping[str, ShapeEffect]] = {
    "key": ShapeEffect.SHAPES_ROWS,
    "deletes": ShapeEffect.SHAPES_ROWS,
    "zero_dates": ShapeEffect.SHAPES_ROWS,
    "undecodable": ShapeEffect.SHAPES_ROWS,
    "charsets": ShapeEffect.SHAPES_ROWS,
    "cascades": ShapeEffect.SHAPES_ROWS,
    **dict.fromkeys(("rows", "masks", "transform", "current_state"), ShapeEffect.RULES),
    "path": ShapeEffect.LOCATION,
    # A change log or a history that is added next to a current-state table starts with the next change. A `gap` row of the change log marks
    # the missing changes.
    **dict.fromkeys(("change_log", "history"), ShapeEffect.RULES),
    # The layout of files, and who writes them. Changed partitions are refused by name.
    **dict.fromkeys(("deletion_vectors", "merge", "partition_by", "cluster_by", "change_feed"), ShapeEffect.NONE),
    # Evaluated only when the source's table changes.
    **dict.fromkeys(("schema_changes", "snapshot"), ShapeEffect.NONE),
    **dict.fromkeys(("owners", "group", "fresh_within_minutes"), ShapeEffect.NONE),
}
OF_DESTINATION: Final[Mapping[str, ShapeEffect]] = {
    "column_include": ShapeEffect.SHAPES_ROWS,
    "column_exclude": ShapeEffect.SHAPES_ROWS,
    "cascades": ShapeEffect.SHAPES_ROWS,
    # `take_up_new_tables` reacts to changed patterns: it snapshots or stops newly included tables.
    **dict.fromkeys(("include", "exclude"), ShapeEffect.RULES),
    **dict.fromkeys(("tables", "shards"), ShapeEffect.SHAPES_ROWS),
    **dict.fromkeys(("name", "table_path"), ShapeEffect.LOCATION),
    **dict.fromkeys(("source", "sources", "reader", "stream", "heartbeat", "start"), ShapeEffect.NONE),
    **dict.fromkeys(("archive", "archive_fetch"), ShapeEffect.NONE),
    **dict.fromkeys(("failover", "failover_back_seconds"), ShapeEffect.NONE),
    **dict.fromkeys(
        ("retention_left_hours_min", "retention_hours_min", "lag_seconds_max", "owners", "group"), ShapeEffect.NONE
    ),
    **dict.fromkeys(
        ("ring", "store", "batch", "merge", "runs", "drain", "maintenance", "equality", "table_assets_max"),
        ShapeEffect.NONE,
    ),
    **dict.fromkeys(("schema_changes", "snapshot", "snapshots"), ShapeEffect.NONE),
    **dict.fromkeys(("canal_server", "brokers", "handlers"), ShapeEffect.NONE),
}
OF_SHARDS: Final[Mapping[str, ShapeEffect]] = {
    "tables": ShapeEffect.LOCATION,
    "into": ShapeEffect.LOCATION,
    "column": ShapeEffect.LOCATION,
    "name": ShapeEffect.LOCATION,
    "options": ShapeEffect.SHAPES_ROWS,
}
COLUMNS, KEY = "column_include, column_exclude", "key"
# Changes (setting, before, after) after which all rows in the lake are still right: under `stop` or `error` a table
# has no refused value, and a lake that followed foreign keys has their effects so far.
HARMLESS: Final = frozenset(
    {("undecodable", "", "quarantine"), ("zero_dates", "error", ""), ("cascades", "", "ignore")}
)
_INCLUDE, _EXCLUDE = "include:", "exclude:"


def shape_of(config: DestinationConfig, name: str) -> dict[str, str]:
    """Returns conf/'s settings for the rows of "database.table", without those that have their default value."""
    database, _, table = name.partition(".")
    options = config.table(database, table)
    charsets = {column.lower(): charset.lower() for column, charset in sorted(options.charsets.items())}
    said = {
        KEY: ",".join(sorted(column.lower() for column in options.key)),
        "deletes": _unless("hard", options.deletes),
        "zero_dates": _unless("null", options.zero_dates),
        "undecodable": _unless("stop", options.undecodable),
        "charsets": json.dumps(charsets, sort_keys=True) if charsets else "",
        "cascades": "ignore" if config.cascade_policy(database, table) == "ignore" else "",
        COLUMNS: _columns(config, name),
    }
    return {setting: value for setting, value in said.items() if value}


def changed_settings(before: Shape, after: Shape, version: TableVersion | None) -> tuple[str, ...]:
    """Returns the settings whose change makes rows in the lake wrong. `version`: the table; None if its columns are unknown.

    A key that names the primary key, and a column filter that leaves the same columns, change nothing.
    """
    return tuple(
        setting
        for setting in sorted({*before, *after})
        if not _is_same(setting, before.get(setting, ""), after.get(setting, ""), version)
    )


def _is_same(setting: str, before: str, after: str, version: TableVersion | None) -> bool:
    if before == after or (setting, before, after) in HARMLESS:
        return True
    compare = _BY_EFFECT.get(setting)
    return compare is not None and version is not None and compare(before, version) == compare(after, version)


def _key(said: str, version: TableVersion) -> str:
    return said or ",".join(sorted(column.lower() for column in version.key))


def _kept(said: str, version: TableVersion) -> str:
    columns = said.removeprefix(_INCLUDE).removeprefix(_EXCLUDE)
    rule = f"{version.name}:{columns}" if said else ""
    kept = ColumnFilter(include=rule) if said.startswith(_INCLUDE) else ColumnFilter(exclude=rule)
    return str(kept.kept(version).tolist())


_BY_EFFECT: Final[Mapping[str, Callable[[str, TableVersion], str]]] = {KEY: _key, COLUMNS: _kept}


def _columns(config: DestinationConfig, name: str) -> str:
    """Returns the setting for the table's columns, as `include:A/B` or `exclude:A/B`; empty if all are captured."""
    included, excluded = _filter(config.column_include, config.column_exclude).names_of(name)
    if included is not None:
        return f"{_INCLUDE}{'/'.join(sorted(included))}"
    return f"{_EXCLUDE}{'/'.join(sorted(excluded))}" if excluded else ""


@functools.lru_cache(maxsize=16)
def _filter(include: str, exclude: str) -> ColumnFilter:
    return ColumnFilter(include, exclude)


def _unless(default: str, said: str) -> str:
    return "" if said == default else said
