"""Checks, immediately before each commit to a Delta table, that the run may still write. All code that commits to the lake uses this
module.

A host may pause at any line until its lease and its locks expire, while another host takes over and merges later batches. If the first host
then committed, rows that were deleted meanwhile would return. The fence queries the store of the locks and the store of the ledger. A Spark
session that was opened without a fence refuses to commit.

Tasks on executors cannot query these stores. The run checks the fence immediately before it sends the tasks. A task's commit succeeds only
if the table is still at the version that the task read.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from sluice.spark_jobs.errors import TableError

Refusal = Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Fence:
    """Checks whether a run may write. `refusal` returns why the run may no longer write, or "", and may be called in any thread."""

    refusal: Refusal
    _at: dict[str, Refusal] = dataclasses.field(default_factory=dict, compare=False)

    def check(self, *names: str) -> None:
        """Raises TableError if the run may no longer write one of these tables. Call this immediately before each commit."""
        locks = (self._at[name] for name in names if name in self._at)
        if why := self.refusal() or next(filter(None, (lock_refusal() for lock_refusal in locks)), ""):
            raise TableError(names[0], why, own=False)

    @contextlib.contextmanager
    def at(self, name: str, refusal: Refusal) -> Iterator[None]:
        """While the context is open, `check(name)` also checks the table lock of the table `name`. `refusal` returns why this lock no
        longer allows a write, or "".
        """
        self._at[name] = refusal
        try:
            yield
        finally:
            del self._at[name]


# For merges from the command line, which have no engine, and so neither a lease nor a ledger to check.
BY_HAND = Fence(lambda: "")
READ_ONLY = Fence(lambda: "the Spark session was opened only to read: a commit needs a fence")
