"""The fence of a run. Right before each commit to a Delta table it checks whether the run may still write. Every committer takes it.

A host may stop between any two lines for longer than its session, while another host takes over and merges what follows. A late write of
the first host would bring back rows that were deleted since. So every committer asks the fence, which asks the stores of the locks and
the ledger. A Spark session that was opened without a fence refuses to commit.

Tasks on executors cannot ask. The run asks right before it sends them, and their commits are conditional on the version of the table that
they read, and on the transaction.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from spark_jobs.errors import TableError

Refusal = Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Fence:
    """Checks whether a run may write. `refusal`: returns why the run may not write any more, or an empty text; called in any thread."""

    refusal: Refusal
    _at: dict[str, Refusal] = dataclasses.field(default_factory=dict, compare=False)

    def check(self, *names: str) -> None:
        """Raises TableError if the run may not write one of these tables any more. Call it right before each commit."""
        locks = (self._at[name] for name in names if name in self._at)
        if why := self.refusal() or next(filter(None, (ask() for ask in locks)), ""):
            raise TableError(names[0], why, own=False)

    @contextlib.contextmanager
    def at(self, name: str, refusal: Refusal) -> Iterator[None]:
        """Also checks the lock of a table while the run holds it."""
        self._at[name] = refusal
        try:
            yield
        finally:
            del self._at[name]


BY_HAND = Fence(lambda: "")  # for merges without an engine, which have no lock and no ledger
READ_ONLY = Fence(lambda: "it was opened to be read, and is not written without a fence")
