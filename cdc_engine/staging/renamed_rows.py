"""Checks whether the lake's rows of a renamed table can be moved to the table's new name, and whether the lake has the values of a renamed
column. Pure functions. Called by `staging`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from sluice.batch_manifest.values import AlterationKind
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY, ValuePolicy
from sluice.cdc_engine.contracts import Column, TableChange
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.states import TableState

# The settings of a table by which its values are decoded, and their differences between two names after which the lake's rows still fit.
DECODING = ("charsets", "zero_dates", "undecodable")
HARMLESS = (("zero_dates", "error", "null"), ("undecodable", "stop", "quarantine"))


def refuse_renamed(change: TableChange, rules: StagingRules, begin: int) -> None:
    """Raises TableStoppedError if the lake cannot follow the rename of a column (`refuse_columns`) or of a table (`refuse_rows`,
    `refuse_filter`). `begin` is the order key at which the batch begins.

    Does nothing if the lake has the change already, which happens if the stream is read again because another table was resumed. A check
    could then be wrong: conf/ may have changed since the first reading, and no longer show with which settings the lake's rows were
    written.
    """
    if change.order_key > rules.has_up_to(f"{change.database}.{change.table}"):
        refuse_columns(change, rules)
        refuse_rows(change, rules.keys, rules.lacking_before(begin), rules.policies)
        refuse_filter(change, rules)


def refuse_rows(
    change: TableChange,
    keys: Mapping[str, tuple[str, ...]],
    lacking: Collection[str],
    policies: Mapping[str, ValuePolicy],
) -> None:
    """Raises TableStoppedError if the lake lacks rows of the renamed table, or if the old or the new name is a shard. Raises the same error
    if conf/ sets another key, filter, mask or transform for the new name than for the old name, or decodes values in another way. Does
    nothing if `change` is no rename.

    `keys` and `policies` have, by "database.table", the keys that conf/ names and the policies. `lacking` are the tables
    whose earlier changes are missing in the lake.
    """
    name, origin = f"{change.database}.{change.table}", change.renamed_from
    if not origin:
        return
    if origin in lacking:
        reason = (
            f"the table was renamed from {origin}, which had stopped, so not all rows are in the lake; resume "
            f"{origin}, and this table continues too"
        )
        raise TableStoppedError(change.database, change.table, TableState.DDL_UNSUPPORTED, reason)
    if any(policies.get(each, DEFAULT_POLICY).shard for each in (name, origin)):
        reason = (
            f"the table was renamed from {origin}, and one of the two names is a shard. Sluice does not move "
            "rows of a shard, because its Delta table has rows of other shards; re-snapshot the table with "
            "`sluice snapshot start`"
        )
        raise TableStoppedError(change.database, change.table, TableState.DDL_UNSUPPORTED, reason)
    if policies.get(name, DEFAULT_POLICY).rules != policies.get(origin, DEFAULT_POLICY).rules:
        reason = (
            f"the table was renamed from {origin}, and conf/ filters, masks or transforms rows differently "
            "for the two names: set the same `rows`, `masks` and `transform` for both names, then resume the "
            "table"
        )
        raise TableStoppedError(change.database, change.table, TableState.ROWS_RULE, reason)
    for setting in DECODING:
        old, new = (getattr(policies.get(each, DEFAULT_POLICY), setting) for each in (origin, name))
        if old != new and (setting, old, new) not in HARMLESS:
            reason = (
                f"the table was renamed from {origin}, and `{setting}` in conf/ differs for the two names, so values in the lake were "
                f"decoded with the `{setting}` of the old name; set the same `{setting}` for both names, then resume the table"
            )
            raise TableStoppedError(change.database, change.table, TableState.DDL_UNSUPPORTED, reason)
    key = change.schema.key if change.schema else ()
    if (keys.get(name) or key) != (keys.get(origin) or key):
        reason = (
            f"the table was renamed from {origin}, and conf/ declares another key for {origin} than for {name}, so the lake "
            "has the rows under the old name's key; set the same `key` for both names, then resume the table"
        )
        raise TableStoppedError(change.database, change.table, TableState.DDL_UNSUPPORTED, reason)


def refuse_filter(change: TableChange, rules: StagingRules) -> None:
    """Raises TableStoppedError for a renamed table if conf/ captures a column under only one of the table's two names. The lake then lacks
    the column's earlier values, or has values that conf/ now excludes. Does nothing if `change` is no rename of a table.
    """
    schema, kept = change.schema, rules.kept
    if schema is None or kept is None or not change.renamed_from:
        return
    database, _, table = change.renamed_from.partition(".")
    now = dataclasses.replace(schema, key=rules.keys.get(schema.name) or schema.key)
    before = dataclasses.replace(now, database=database, table=table)
    if differ := sorted({*kept(now).tolist()} ^ {*kept(before).tolist()}):
        reason = (
            f"the table was renamed from {change.renamed_from}, and column_include or column_exclude in conf/ captures the column "
            f"{schema.columns[differ[0]].name} under only one of the two names, so the rows in the lake do not fit. Sluice re-snapshots "
            "the table by itself, unless `snapshot` is never. If the column must stay out of the lake, exclude it under both names"
        )
        raise TableStoppedError(change.database, change.table, TableState.DDL_UNSUPPORTED, reason)


def refuse_columns(change: TableChange, rules: StagingRules) -> None:
    """Raises TableStoppedError for a renamed column if conf/ captures only one of its two names, or sets different charsets for the two
    names. If conf/ captures only the new name, the lake lacks the earlier values. If conf/ captures only the old name, the lake must not
    keep the earlier values, because conf/ now excludes the column.
    """
    schema = change.schema
    renames = {each.new_name.lower(): each.column for each in change.alterations if each.kind is AlterationKind.RENAME}
    if schema is None or not renames:
        return
    now = dataclasses.replace(schema, key=rules.keys.get(schema.name) or schema.key)
    before = dataclasses.replace(
        now,
        key=tuple(renames.get(name.lower(), name) for name in now.key),
        columns=tuple(
            dataclasses.replace(each, name=renames.get(each.name.lower(), each.name)) for each in schema.columns
        ),
    )
    kept, policy = rules.kept, rules.policy(schema.name)
    differ = sorted({*kept(now).tolist()} ^ {*kept(before).tolist()}) if kept is not None else []
    for index in differ:
        why = (
            "column_include or column_exclude in conf/ captures only one of the two names, so the rows in the lake do not fit. Sluice "
            "re-snapshots the table by itself, unless `snapshot` is never. If the column must stay out of the lake, exclude both names"
        )
        raise _renamed(change, (before.columns[index], now.columns[index]), TableState.DDL_UNSUPPORTED, why)
    for old, new in zip(before.columns, now.columns, strict=True):
        if policy.corrected(old).charset != policy.corrected(new).charset:
            why = "`charsets` in conf/ has not the same charset for the two names: name both columns in `charsets`"
            raise _renamed(change, (old, new), TableState.ROWS_RULE, why)


def _renamed(change: TableChange, column: tuple[Column, Column], state: TableState, why: str) -> TableStoppedError:
    reason = f"the column {column[0].name} was renamed to {column[1].name}, and {why}"
    return TableStoppedError(change.database, change.table, state, reason)
