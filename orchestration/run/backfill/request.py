"""Defines the request of a backfill, and the callbacks that report its progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.time_text import time_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillRequest:
    """A requested backfill: the interval [from_us, to_us) of a destination's tables. `to_us` None: until now.

    `into`: the "database.table" to build with the single table's past state, instead of changing the live one.
    """

    destination: str
    from_us: int
    to_us: int | None
    tables: tuple[str, ...]
    into: str = ""

    def __str__(self) -> str:
        to = "now" if self.to_us is None else time_text(self.to_us)
        if self.into:
            return f"{self.destination}: {', '.join(self.tables)} as it was at {to}, as {self.into}"
        return f"{self.destination}: changes from {time_text(self.from_us)} to {to}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillListener:
    """The callbacks of a backfill. `progress`: gets the bytes of the binlog that were read, and in total. `done`: called when a table has
    its commit.
    """

    say: Callable[[str], None]
    done: Callable[[TableReport], None] = lambda _: None
    progress: Callable[[int, int], None] = lambda _read, _all: None
