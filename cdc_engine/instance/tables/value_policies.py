"""What conf/ says of a table's values and rows, as the decoders take it: for staging, backfills, snapshots and consumers alike.

So whoever reads a table's rows, from the stream or from the table itself, sees the same rows under the same masks.
"""

from __future__ import annotations

import os

from cdc_engine.binlog.row_rules.masks import HASH, ColumnMask
from cdc_engine.binlog.row_rules.rules import RowRules
from cdc_engine.binlog.rows.refused_values import ValuePolicy
from cdc_engine.config import DestinationConfig, TableConfig
from cdc_engine.config.rows import MaskConfig
from cdc_engine.errors import ConfigurationError


def policies_of(config: DestinationConfig) -> dict[str, ValuePolicy]:
    """By "database.table". Raises ConfigurationError where a condition cannot be read or a salt is not set."""
    return {name: policy_of(name, table) for name, table in config.tables.items()}


def keys_of(config: DestinationConfig) -> dict[str, tuple[str, ...]]:
    """By "database.table" the key columns that conf/ names."""
    return {name: table.key for name, table in config.tables.items() if table.key}


def policy_of(name: str, table: TableConfig) -> ValuePolicy:
    """Of "database.table". Raises ConfigurationError."""
    return ValuePolicy(
        zero_dates=table.zero_dates, undecodable=table.undecodable, charsets=table.charsets, rules=rules_of(name, table)
    )


def rules_of(name: str, table: TableConfig) -> RowRules:
    """Of "database.table". Raises ConfigurationError."""
    rules = RowRules(
        condition=table.rows.strip(), masks=tuple(_mask(name, column, mask) for column, mask in table.masks.items())
    )
    try:
        _ = rules.wanted
    except ConfigurationError as error:
        raise ConfigurationError(f"tables.{name}.rows: {error}") from None
    return rules


def _mask(name: str, column: str, mask: MaskConfig) -> ColumnMask:
    salt = os.environ.get(mask.salt_env, "") if mask.kind == HASH else ""
    if mask.kind == HASH and not salt:
        raise ConfigurationError(
            f"tables.{name}.masks.{column}: the environment variable {mask.salt_env} is not set, and without a salt whoever guesses a "
            "value knows its digest: set it, to the same wherever Sluice runs"
        )
    return ColumnMask(
        column=column, kind=mask.kind, chars=mask.chars, salt=salt, may_be_missing=mask.if_missing == "ignore"
    )
