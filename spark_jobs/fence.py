"""The fence of a run: right before each commit to a Delta table it asks whether the run may still write. Everything that commits takes it.

A host may stand still between any two lines, for longer than its session, while another host takes over and merges what comes next. What
the first one writes after that would bring back rows that were deleted since. So who commits asks the fence, which asks where locks and
ledger are kept; a session that was opened without one refuses to commit.

Tasks on executors cannot ask. The run asks right before it sends them, and their commits are conditional: on the version of the table that
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
    """`refusal`: why the run may not write any more, or empty; asked in any thread."""

    refusal: Refusal
    _at: dict[str, Refusal] = dataclasses.field(default_factory=dict, compare=False)

    def check(self, *names: str) -> None:
        """Raises TableError where the run may not write one of these tables any more. To be called right before each commit."""
        locks = (self._at[name] for name in names if name in self._at)
        if why := self.refusal() or next(filter(None, (ask() for ask in locks)), ""):
            raise TableError(names[0], why, own=False)

    @contextlib.contextmanager
    def at(self, name: str, refusal: Refusal) -> Iterator[None]:
        """A table that has a lock of its own, for as long as the run holds that: it is asked too."""
        self._at[name] = refusal
        try:
            yield
        finally:
            del self._at[name]


BY_HAND = Fence(lambda: "")  # for who merges without an engine: there is no lock and no ledger to ask
READ_ONLY = Fence(lambda: "it was opened to be read, and is not written without a fence")
