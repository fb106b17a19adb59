"""Defines `LocatedValues`, a kernel argument with the offsets and sizes of values in a buffer."""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.contracts import Int64s


class LocatedValues(NamedTuple):
    """The offset and the size in bytes of each value. The arrays have one column's rows, or columns by rows. NULL starts at -1."""

    starts: Int64s
    sizes: Int64s
