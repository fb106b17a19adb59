"""Registers the decoders of all MySQL column types when this package is imported. Each family of types has a file. `entry` defines
`ColumnType`.
"""

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

# The import of a module registers its types. This tuple uses the imports, so that linters do not remove them.
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
