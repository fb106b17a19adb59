"""The register of column types, one file a family; importing this package fills it. See `entry` for what a type is."""

from cdc_engine.binlog.column_types import (
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
from cdc_engine.binlog.column_types.entry import (
    ColumnType,
    TypeUnsupportedError,
    ValueRefusedError,
    Values,
    buffer_of,
    type_of,
)

__all__ = ["ColumnType", "TypeUnsupportedError", "ValueRefusedError", "Values", "buffer_of", "type_of"]

# Importing each has registered its types.
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
