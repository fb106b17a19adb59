"""Checks, immediately before each commit to a Delta table, that the run may still write. All code that commits uses it.

A host can pause between any two lines for longer than its session lasts, while another host takes over and merges later batches. A late
write by the first host would restore rows that were deleted since. The fence asks the stores of the locks and the ledger. A Spark session
that was opened without a fence refuses to commit.

Tasks on executors cannot ask the stores. The run checks immediately before it sends them, and their commits are conditional on the table
version that they read and on the transaction."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from sluice.spark_jobs.errors import TableError

Refusal = Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Fence:
    """Checks whether a run may write. `refusal`: returns why the run may no longer write, or an empty string; it is called in any
    thread.
    """

    refusal: Refusal
    _at: dict[str, Refusal] = dataclasses.field(default_factory=dict, compare=False)

    def check(self, *names: str) -> None:
        """Raises TableError if the run may no longer write one of these tables. Call it immediately before each commit."""
        locks = (self._at[name] for name in names if name in self._at)
        if why := self.refusal() or next(filter(None, (ask() for ask in locks)), ""):
            raise TableError(names[0], why, own=False)

    @contextlib.contextmanager
    def at(self, name: str, refusal: Refusal) -> Iterator[None]:
        """Returns a fence that also checks the lock of a table while the run holds it."""
        self._at[name] = refusal
        try:
            yield
        finally:
            del self._at[name]


BY_HAND = Fence(lambda: "")  # This is for merges without an engine, which have neither lock nor ledger.
READ_ONLY = Fence(lambda: "it was opened to be read, and is not written without a fence")
