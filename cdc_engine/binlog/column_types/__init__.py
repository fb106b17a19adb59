"""Registers all column types, one file per family, when it is imported. `entry` defines what a column type is."""

from sluice.cdc_engine.binlog.column_types import (
    compressed,
    dates,
    decimals,
    documents,
    identifiers,
    labels,
    numbers,
    text,
    times,
)
from sluice.cdc_engine.binlog.column_types.entry import (
    ColumnType,
    TypeUnsupportedError,
    ValueRefusedError,
    Values,
    buffer_of,
    type_of,
)

__all__ = ["ColumnType", "TypeUnsupportedError", "ValueRefusedError", "Values", "buffer_of", "type_of"]

# Importing a module registers its types.
FAMILIES = (
    numbers,
    decimals,
    text,
    identifiers,
    labels,
    dates,
    times,
    documents,
    compressed,
)
