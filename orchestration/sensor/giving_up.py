"""Which tables stop by name because they cannot be merged, so that their batch goes on without them. Pure; `tick` does what is answered.

Decided by level from the run records of the batch: what its newest run said, and what the runs of its earlier deliveries did. A table whose
failure no further try can mend stops at once, another one after TRIES_MAX runs in a row that failed for a reason of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from orchestration.ports import TableFailure

TRIES_MAX = 4  # with their waits (backoff): a minute and more


def tables_to_stop(runs: Sequence[Mapping[str, TableFailure]]) -> dict[str, tuple[str, str]]:
    """ "database.table" → (state, reason). `runs`: what its failed runs say of its tables, the newest first, without a break."""
    if not runs:
        return {}
    tries = {name: _in_a_row(name, runs) for name in runs[0]}
    return {
        name: (why.state, _sentence(why, tries[name]))
        for name, why in runs[0].items()
        if why.for_good or tries[name] >= TRIES_MAX
    }


def _in_a_row(name: str, runs: Sequence[Mapping[str, TableFailure]]) -> int:
    return len(list(itertools.takewhile(lambda failed: name in failed, runs)))


def _sentence(why: TableFailure, tries: int) -> str:
    return why.reason if why.for_good else f"{why.reason} ({tries} runs in a row could not merge it)"
