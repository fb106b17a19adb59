"""Checks, immediately before each commit to a Delta table, that the run may still write. All code that commits to the lake uses it.

A host may pause at any line until its lease and its locks expire, while another host takes over and merges later batches. A late commit of
the first host would restore rows that have been deleted since. The fence queries the stores of the locks and the ledger. A Spark session
that was opened without a fence refuses to commit.

Tasks on executors cannot query these stores. The run checks immediately before it sends the tasks. Their commits succeed only if the table
is still at the version that the task read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from sluice.spark_jobs.errors import TableError

Refusal = Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Fence:
    """Checks whether a run may write. `refusal`: returns why the run may no longer write, or an empty string. It is
    called in any thread.
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
        """Makes `check` of this table also check its table lock, while the context is open. `refusal`: returns why the lock no longer
        allows a write.
        """
        self._at[name] = refusal
        try:
            yield
        finally:
            del self._at[name]


BY_HAND = Fence(lambda: "")  # The fence of merges without an engine, which have neither lease nor ledger.
READ_ONLY = Fence(lambda: "the Spark session was opened only to read: a commit needs a fence")
