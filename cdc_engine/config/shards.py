"""Defines the settings of shards: source tables that share a Delta table. Each row of the Delta table has the name of its shard. Several
destinations may have shards of one Delta table.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

from pydantic import Field, model_validator

from sluice.cdc_engine.config.table import TableConfig
from sluice.cdc_engine.config_paths import path_segment
from sluice.cdc_engine.source.settings import Strict

SHARD_COLUMN = "_sluice_shard"
# The settings that `options` of a `shards` entry may contain. Any other setting could change rows of other shards.
OPTIONS = frozenset(
    {
        *("key", "deletes", "deletion_vectors", "merge", "partition_by", "cluster_by", "change_feed"),
        *("zero_dates", "charsets", "snapshot", "schema_changes", "group", "owners", "fresh_within_minutes"),
    }
)
# Kind of schema change → the policies that a shard may have for it. Any other policy would change columns of other shards.
POLICIES = {
    "drop": ("keep", "stop"),
    "rename": ("stop",),
    "widen": ("apply", "stop"),
    "convert": ("stop",),
    "key": ("stop",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardOf:
    """A source table that shares a Delta table with other source tables. `into` is the path of the Delta table in the lake. In the rows of
    this source table, the Delta table's column `column` contains `name`. `options` are the settings of the Delta table.
    """

    into: str
    column: str
    name: str
    options: TableConfig


class ShardsConfig(Strict):
    """Source tables that share a Delta table. `into` and `name` may contain {destination}, {database}, {table}, and {1}, {2}, … for the
    groups of the regular expression `tables`.
    """

    tables: str = Field(
        description="Regular expression of the source tables as `database.table`, case-insensitive, for example "
        "`shop_(\\d+)\\.orders`."
    )
    into: str = Field(description="Path of the common Delta table in the lake, for example `shop/orders`.")
    column: str = Field(
        SHARD_COLUMN,
        min_length=1,
        description="Column of the common Delta table that has the name of the row's shard. The column becomes part of the key.",
    )
    name: str = Field(
        "{database}.{table}",
        description=(
            "Name of a shard, which must differ for each source table. May contain {destination}, {database}, {table}, "
            "and {1}, {2}, … for the groups of the regular expression `tables`."
        ),
    )
    options: TableConfig = Field(
        TableConfig(),
        description="Settings of the common Delta table. They are the settings that a table has under `tables`.",
    )

    @model_validator(mode="after")
    def _readable(self) -> ShardsConfig:
        try:
            groups = _compiled(self.tables).groups
        except re.error as error:
            raise ValueError(f"tables: {self.tables!r} is not a regular expression ({error})") from None
        for setting, template in (("into", self.into), ("name", self.name)):
            try:
                filled = template.format("", *[""] * groups, destination="", database="", table="")
            except (LookupError, ValueError, AttributeError):
                raise ValueError(
                    f"{setting}: {template!r} may have only these placeholders: {{destination}}, {{database}}, {{table}}, and {{1}} to "
                    f"{{{groups}}}, which are the groups of `tables`"
                ) from None
            if filled == template and setting == "name":
                raise ValueError(
                    f"name: {template!r} gives every shard the same name: use a placeholder, such as {{database}}"
                )
        parts = self.into.split("/")
        if self.into.startswith(("/", "_sluice")) or not {"", ".", ".."}.isdisjoint(each.strip() for each in parts):
            raise ValueError(f"into: {self.into!r} must be a path below the lake, such as shop/orders")
        return self

    @model_validator(mode="after")
    def _confined(self) -> ShardsConfig:
        for setting in sorted(self.options.model_fields_set - OPTIONS):
            raise ValueError(
                f"options: {setting} is not supported for a table of several shards; remove this option, or "
                "remove the `shards` entry"
            )
        changes = self.options.schema_changes
        for kind, policies in POLICIES.items():
            if kind in changes.model_fields_set and getattr(changes, kind) not in policies:
                raise ValueError(
                    f"options.schema_changes.{kind}: a statement on one shard cannot change the columns of all shards; use "
                    f"{' or '.join(policies)}"
                )
        return self

    def of(self, destination: str, database: str, table: str) -> ShardOf | None:
        """Returns the shard settings of a source table, or None if the pattern `tables` does not match the source table."""
        found = _compiled(self.tables).fullmatch(f"{database}.{table}")
        if found is None:
            return None
        names = {"destination": destination, "database": database, "table": table}
        groups = [found[0], *(each or "" for each in found.groups())]
        return ShardOf(
            into=self.into.format(
                *map(path_segment, groups), **{group: path_segment(name) for group, name in names.items()}
            ),
            column=self.column,
            name=self.name.format(*groups, **names),
            options=self.options,
        )

    def policy(self, general: dict[str, str]) -> dict[str, str]:
        """Returns the policy for each kind of schema change of a shard. `general` are the destination's policies. The policies in `options`
        override them. `stop` replaces a policy that would change columns of other shards.
        """
        own = self.options.schema_changes.model_dump(include=self.options.schema_changes.model_fields_set)
        found = {**general, **own}
        return {kind: policy if policy in POLICIES.get(kind, (policy,)) else "stop" for kind, policy in found.items()}


def not_distinguished(names: Mapping[str, str], path: str) -> str:
    """Returns a message that says why rows of shards in the Delta table at `path` cannot be distinguished, and what to do, or "". `names`
    has the name of each shard, by its source table.
    """
    for table, name in sorted(names.items()):
        if not name:
            return (
                f"{table} has an empty name as a shard of {path}: set `name` in `shards` so that no name is empty, for example "
                "with {database} in the name"
            )
    shards = [*names.values()]
    if twice := sorted({name for name in shards if shards.count(name) > 1}):
        same = " and ".join(sorted(table for table, name in names.items() if name == twice[0]))
        return (
            f"{same} have the same Delta path {path} and are not distinguished as shards, because all of them have "
            f"the name {twice[0]!r}: set `name` in `shards` so that the names differ, for example with "
            "{destination} in the name"
        )
    return ""


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
