"""Groups start and size of values in a buffer into one argument for kernels."""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.contracts import Int64s


class LocatedValues(NamedTuple):
    """Start and size of each value, of one column or of columns by rows."""

    starts: Int64s
    sizes: Int64s
