"""Defines which settings of conf/ determine what a table's rows in the lake look like, and whether the rows are wrong after such a setting
has changed. Pure functions.

`filter_change` saves these settings of a table (`shape_of`), and stops the table when `changed_settings` returns a setting. The
dictionaries `OF_…` below classify each setting of a table or a destination. A test fails if a setting is not classified.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sluice.cdc_engine.binlog.column_types.transcoding import is_text
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig, TableConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.sink.column_filter import ColumnFilter

Shape = Mapping[str, str]  # Setting → its value in conf/. Settings with the default value are left out.


class ShapeEffect(enum.StrEnum):
    """How a changed setting affects the rows that are already in the lake."""

    SHAPES_ROWS = "shapes rows"  #: The setting is in `shape_of`. After a change the table is re-snapshotted.
    RULES = "rules"  #: The setting is in the digests of `filter_change`. After a change the table is re-snapshotted.
    #: The setting selects the Delta table to which a source table is written. After a change the table stops in TABLE_MISSING or
    #: TABLE_OWNED, because the last run recorded another path.
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
    # A change of these settings re-snapshots only a table without a current-state table. For other tables, an added change log or history
    # begins with the next change, and a `gap` row in the change log marks that earlier changes are missing.
    **dict.fromkeys(("change_log", "history"), ShapeEffect.RULES),
    # These settings choose only the layout of the Delta table's files and the way of merging. If `partition_by` changes for an existing
    # table, the run refuses the table with a message.
    **dict.fromkeys(("deletion_vectors", "merge", "partition_by", "cluster_by", "change_feed"), ShapeEffect.NONE),
    # These settings have an effect only when the schema of the source's table changes, or when a table is snapshotted.
    **dict.fromkeys(("schema_changes", "snapshot"), ShapeEffect.NONE),
    **dict.fromkeys(("owners", "group", "fresh_within_minutes"), ShapeEffect.NONE),
}
OF_DESTINATION: Final[Mapping[str, ShapeEffect]] = {
    "column_include": ShapeEffect.SHAPES_ROWS,
    "column_exclude": ShapeEffect.SHAPES_ROWS,
    "cascades": ShapeEffect.SHAPES_ROWS,
    # `take_up_new_tables` handles changed patterns: it snapshots or stops newly included tables.
    **dict.fromkeys(("include", "exclude"), ShapeEffect.RULES),
    **dict.fromkeys(("tables", "shards"), ShapeEffect.SHAPES_ROWS),
    **dict.fromkeys(("name", "table_path"), ShapeEffect.LOCATION),
    **dict.fromkeys(("source", "sources", "reader", "stream", "heartbeat", "start"), ShapeEffect.NONE),
    **dict.fromkeys(("archive", "archive_fetch"), ShapeEffect.NONE),
    **dict.fromkeys(("failover", "failover_back_seconds"), ShapeEffect.NONE),
    **dict.fromkeys(("retention_left_hours_min", "lag_seconds_max", "owners", "group"), ShapeEffect.NONE),
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
COLUMNS, KEY, CHARSETS = "column_include, column_exclude", "key", "charsets"
# The name in `filters.json`, and in the reasons of stops, for how Sluice applies `charsets`. Earlier versions of Sluice had no such entry:
# they did not apply `charsets` to the labels of an ENUM or SET, and treated the zero bytes of a BINARY or CHAR in another way.
APPLIED, APPLIED_NOW = "charsets, which Sluice now applies to labels and zero bytes too", "2"
# Changes of settings, as (setting, before, after), after which the rows in the lake are still right.
HARMLESS: Final = frozenset(
    {
        ("undecodable", "", "quarantine"),  # Before, with `stop`, the lake got no undecodable values.
        ("zero_dates", "error", ""),  # Before, the lake got no invalid dates, which are NULL by default.
        ("cascades", "", "ignore"),  # Before, with any other value, the lake got all effects of foreign keys.
    }
)
_INCLUDE, _EXCLUDE = "include:", "exclude:"


def shape_of(config: DestinationConfig, name: str) -> dict[str, str]:
    """Returns the settings that determine what the rows of "database.table" look like. Leaves out settings that have their default
    value.
    """
    database, _, table = name.partition(".")
    cascades = "ignore" if config.cascade_policy(database, table) == "ignore" else ""
    columns = _columns(config.column_include, config.column_exclude, name)
    return _said({**_of_options(config.table(database, table)), "cascades": cascades, COLUMNS: columns})


def settings_of_others(config: DestinationConfig) -> dict[str, Any]:
    """Returns the settings that determine what the rows of a table look like if the table has no entry in `tables`. The result can be
    stored as JSON, and is the argument `settings` of `shape_of_other`.
    """
    shards = [[each.tables, _said(_of_options(each.options))] for each in config.shards]
    filters = {"column_include": config.column_include, "column_exclude": config.column_exclude}
    return {**filters, "cascades": config.cascades, "shards": shards}


def shape_of_other(settings: Mapping[str, Any], name: str) -> dict[str, str]:
    """Returns what `shape_of` returned for "database.table" when conf/ had `settings` and no entry for the table in `tables`."""
    cascades = "ignore" if settings["cascades"] == "ignore" else ""
    columns = _columns(settings["column_include"], settings["column_exclude"], name)
    shards = (shape for pattern, shape in settings["shards"] if re.fullmatch(pattern, name, re.IGNORECASE))
    return _said({**next(shards, {}), "cascades": cascades, COLUMNS: columns})


def _of_options(options: TableConfig) -> dict[str, str]:
    charsets = {column: charset.lower() for column, charset in sorted(options.charsets.items())}
    return {
        KEY: ",".join(sorted(column.lower() for column in options.key)),
        "deletes": _unless("hard", options.deletes),
        "zero_dates": _unless("null", options.zero_dates),
        "undecodable": _unless("stop", options.undecodable),
        CHARSETS: json.dumps(charsets, sort_keys=True) if charsets else "",
        APPLIED: APPLIED_NOW if charsets else "",
    }


def _said(settings: Mapping[str, str]) -> dict[str, str]:
    return {setting: value for setting, value in settings.items() if value}


def changed_settings(before: Shape, after: Shape, version: TableVersion | None) -> tuple[str, ...]:
    """Returns the settings whose change from `before` to `after` makes the rows in the lake wrong. A new `key` that names the primary key's
    columns counts as unchanged. A new column filter that keeps the same columns also counts as unchanged. `version` is the table, or None
    if its columns are unknown.
    """
    return tuple(setting for setting in sorted({*before, *after}) if not _is_same(setting, before, after, version))


def _is_same(setting: str, before: Shape, after: Shape, version: TableVersion | None) -> bool:
    old, new = before.get(setting, ""), after.get(setting, "")
    if old == new or (setting, old, new) in HARMLESS:
        return True
    compare = _BY_EFFECT.get(setting)
    return compare is not None and version is not None and compare(before, version) == compare(after, version)


def _key(shape: Shape, version: TableVersion) -> str:
    return shape.get(KEY) or ",".join(sorted(column.lower() for column in version.key))


def _kept(shape: Shape, version: TableVersion) -> str:
    """Returns the indices of the captured columns. A column filter never removes key columns: the columns of `key` in conf/, or those of
    the primary key if conf/ has no `key`.
    """
    said, declared = shape.get(COLUMNS, ""), shape.get(KEY)
    keyed = dataclasses.replace(version, key=tuple(declared.split(","))) if declared else version
    columns = said.removeprefix(_INCLUDE).removeprefix(_EXCLUDE)
    rule = f"{version.name}:{columns}" if said else ""
    kept = ColumnFilter(include=rule) if said.startswith(_INCLUDE) else ColumnFilter(exclude=rule)
    return str(kept.kept(keyed).tolist())


def _applied(shape: Shape, version: TableVersion) -> str:
    """Returns how the values of the table were decoded with `charsets`, as far as this differs between versions of Sluice."""
    charsets = json.loads(shape.get(CHARSETS, "{}"))
    policy = ValuePolicy(charsets=charsets)
    for column in version.columns:
        said, declared = charsets.get(column.name.lower(), ""), column.mysql_type.lower().partition("(")[0]
        has_other_zeros = declared == ("binary" if is_text(said) else "char")
        if said and (has_other_zeros or policy.corrected(column).labels != column.labels):
            return shape.get(APPLIED, "")
    return APPLIED_NOW


_BY_EFFECT: Final[Mapping[str, Callable[[Shape, TableVersion], str]]] = {KEY: _key, COLUMNS: _kept, APPLIED: _applied}


def _columns(include: str, exclude: str, name: str) -> str:
    """Returns the column filter of a table as `include:A/B` or `exclude:A/B`, or an empty text if all columns are captured."""
    included, excluded = _filter(include, exclude).names_of(name)
    if included is not None:
        return f"{_INCLUDE}{'/'.join(sorted(included))}"
    return f"{_EXCLUDE}{'/'.join(sorted(excluded))}" if excluded else ""


@functools.lru_cache(maxsize=16)
def _filter(include: str, exclude: str) -> ColumnFilter:
    return ColumnFilter(include, exclude)


def _unless(default: str, said: str) -> str:
    return "" if said == default else said
