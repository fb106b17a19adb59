"""Where values are in a buffer, as one argument of a kernel."""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.contracts import Int64s


class LocatedValues(NamedTuple):
    """Start and size of each value: of one column, or of columns by rows."""

    starts: Int64s
    sizes: Int64s
