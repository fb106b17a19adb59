"""Converts the settings of conf/ about values and rows to the value policies that decoders take.

Staging, backfills, snapshots and consumers all use these policies. So rows from the stream and rows that are read from the source's table
have the same filter, masks and transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from sluice.cdc_engine.binlog.row_rules.masks import HASH, ColumnMask
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.binlog.rows.shard_column import ShardColumn
from sluice.cdc_engine.config import DestinationConfig, TableConfig
from sluice.cdc_engine.config.rows import MaskConfig
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, SecretUnavailableError
from sluice.cdc_engine.instance.tables.transform_functions import transform_of

NO_SALT = (
    "without a salt, anybody can verify a guessed value by its digest: set the salt, to the same value on all hosts"
)


def policies_of(config: DestinationConfig) -> Mapping[str, ValuePolicy]:
    """Returns the value policies by "database.table". Raises ConfigurationError if a condition cannot be parsed, if a salt is not set, or
    if the function of a transform cannot be imported.
    """
    named = {name: policy_of(config, *name.partition(".")[::2]) for name in config.tables}
    return _WithShards(named, config, lambda database, table: policy_of(config, database, table))


def keys_of(config: DestinationConfig) -> Mapping[str, tuple[str, ...]]:
    """Returns the key columns that conf/ names, by "database.table"."""
    named = {name: table.key for name, table in config.tables.items() if table.key}
    return _WithShards(named, config, lambda database, table: config.table(database, table).key)


T = TypeVar("T")


class _WithShards(Mapping[str, T]):
    """Maps tables to their settings. A look-up finds the tables that conf/ names, and also the shards, which conf/ selects by patterns.
    Iteration yields only the tables that conf/ names.
    """

    def __init__(self, named: Mapping[str, T], config: DestinationConfig, of: Callable[[str, str], T]) -> None:
        self._named, self._config, self._of = named, config, of
        self._shards: dict[str, T | None] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._named or not self._config.shards:
            return self._named[name]
        if name not in self._shards:
            database, _, table = name.partition(".")
            is_one = self._config.shard(database, table) is not None
            self._shards[name] = self._of(database, table) if is_one else None
        found = self._shards[name]
        if not found:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __bool__(self) -> bool:
        """Returns True if tables or shards have settings. Without this method, `given or {}` would lose the settings of shards, because a
        mapping that has only shards has the length 0.
        """
        return bool(self._named or self._config.shards)


def policy_of(config: DestinationConfig, database: str, table: str) -> ValuePolicy:
    """Returns the value policy of one table. Raises ConfigurationError if a condition, a salt or the function of a transform is invalid."""
    options, shard = config.table(database, table), config.shard(database, table)
    return ValuePolicy(
        zero_dates=options.zero_dates,
        undecodable=options.undecodable,
        charsets=options.charsets,
        rules=rules_of(f"{database}.{table}", options, config.name),
        shard=ShardColumn(column=shard.column, name=shard.name) if shard else None,
    )


def rules_of(name: str, table: TableConfig, destination: str = "") -> RowRules:
    """Returns the row rules of a table. `name` is "database.table". `destination` is empty if the rules are only checked and never applied.
    Raises ConfigurationError if a condition, a salt or the function of a transform is invalid.
    """
    rules = RowRules(
        condition=table.rows.strip(),
        masks=tuple(_mask(name, column, mask) for column, mask in table.masks.items()),
        transform=transform_of(name, table.transform, destination) if table.transform is not None else None,
    )
    try:
        _ = rules.wanted
    except ConfigurationError as error:
        raise ConfigurationError(f"tables.{name}.rows: {error}") from None
    return rules


def _mask(name: str, column: str, mask: MaskConfig) -> ColumnMask:
    salt = ""
    if mask.kind == HASH:
        try:
            salt = filled(mask.salt, f"tables.{name}.masks.{column}: salt")
        except SecretUnavailableError as error:
            raise SecretUnavailableError(f"{error}; {NO_SALT}") from None
        if not salt:
            raise ConfigurationError(f"tables.{name}.masks.{column}: the salt at {mask.salt} is empty; {NO_SALT}")
    return ColumnMask(
        column=column, kind=mask.kind, chars=mask.chars, salt=salt, may_be_missing=mask.if_missing == "ignore"
    )
