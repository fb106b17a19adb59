"""Decides whether the parser connects again after an error, and how long it waits before it connects. Does no I/O."""

from __future__ import annotations

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import ChecksumError, Remedy, SluiceError

# After a wrong checksum, the parser connects again. If a checksum is wrong at the same position this many times, the parser stops, because
# the server's file itself is damaged.
CHECKSUM_TRIES_MAX = 3


class Attempts:
    """Counts the parser's errors since the last accepted block. `tried_again` counts an error, and returns whether the parser connects
    again.
    """

    def __init__(self) -> None:
        self.count = 0
        self._checksum_position = ("", -1)
        self._checksum_count = 0

    def succeeded(self) -> None:
        """Resets the count after a block was accepted."""
        self.count = 0

    def tried_again(self, error: SluiceError) -> bool:
        self.count += 1
        if isinstance(error, ChecksumError):
            position = (error.file, error.offset)
            self._checksum_count = self._checksum_count + 1 if position == self._checksum_position else 1
            self._checksum_position = position
            return self._checksum_count < CHECKSUM_TRIES_MAX
        return error.remedy is Remedy.RETRY

    def wait_seconds(self, chance: float) -> float:
        """Returns how many seconds to wait before the parser connects again. The longest wait doubles with each error, up to
        RECONNECT_SECONDS_MAX. The result is half of the longest wait, plus the other half multiplied by `chance` (0 ≤ chance < 1), so that
        the engines of one server do not all reconnect at the same moment.
        """
        doublings = min(self.count - 1, 16)
        longest = min(limits.RECONNECT_SECONDS_MAX, limits.RECONNECT_SECONDS_MIN * 2**doublings)
        return float(longest * (0.5 + 0.5 * chance))
