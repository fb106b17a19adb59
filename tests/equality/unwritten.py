"""Provides the progress of a destination whose tables nobody writes, for comparisons in tests."""

from __future__ import annotations

from sluice.equality.source_side import BinlogEnd


class NothingToWaitFor:
    """Reports that everything is merged, for comparisons of a table that nobody writes."""

    def wait(self, end: BinlogEnd, seconds: float) -> bool:  # noqa: ARG002
        return True

    def order_key(self, end: BinlogEnd) -> int | None:  # noqa: ARG002
        return None

    def progress(self) -> str:
        return "everything"

    def halted(self) -> str:
        return ""
