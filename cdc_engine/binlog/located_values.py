"""Defines `LocatedValues`, which tells numba kernels the offset and the size of each value in a buffer."""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.contracts import Int64s


class LocatedValues(NamedTuple):
    """The offset (`starts`) and the size in bytes (`sizes`) of each value in a buffer. The arrays have one dimension for the rows of one
    column, or two: columns by rows. The offset of NULL is -1.
    """

    starts: Int64s
    sizes: Int64s
