"""How deltalake is told to write data files, so that the log says no bound that is wrong. Whoever writes by deltalake asks.

It makes a bound of a decimal through a float: of 18446744073709551615 it says 9223372036854775807, of 4611686018427387905 (a BIGINT
UNSIGNED) 4611686018427387904. A reader that believes that passes over the file, and a merge inserts its key a second time. Of columns
with so many digits the log says nothing instead: their files are looked into.
"""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from deltalake import ColumnProperties, WriterProperties

DIGITS_MAX = 15  # that a float keeps
COMPRESSION: Literal["SNAPPY"] = "SNAPPY"  # as deltalake has it where it is told nothing


def writer_properties(schema: pa.Schema) -> Any:
    """`WriterProperties` of files with these columns; None, which its stubs do not know, where deltalake does right by itself."""
    doubtful = [field for field in schema if _is_long(field.type)]
    if not doubtful:
        return None
    nothing, bounds = ColumnProperties(statistics_enabled="NONE"), ColumnProperties(statistics_enabled="CHUNK")
    if not any(pa.types.is_nested(field.type) for field in doubtful):
        return WriterProperties(compression=COMPRESSION, column_properties={field.name: nothing for field in doubtful})
    # what lies within a column cannot be named there, so it is the others that are
    exact = {field.name: bounds for field in schema if field not in doubtful}
    return WriterProperties(compression=COMPRESSION, default_column_properties=nothing, column_properties=exact)


def _is_long(kind: Any) -> bool:
    """Whether it is, or holds, a decimal of more digits than a float has."""
    if pa.types.is_nested(kind):
        return any(_is_long(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind)) and kind.precision > DIGITS_MAX
