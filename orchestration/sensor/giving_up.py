"""Decides which tables stop because they cannot be merged, so that their batch continues without them. `tick` carries the decision out.

The decision uses the failures that the runs of the batch's deliveries reported. A table stops at once if another attempt cannot succeed.
Otherwise it stops after TRIES_MAX consecutive runs failed because of this table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from sluice.orchestration.base.ports import TableFailure

# A table stops when this many consecutive runs have failed because of it. The waits between these runs (`backoff.pause_seconds`) take 30 s
# together, so a shorter fault stops no table.
TRIES_MAX = 4


def tables_to_stop(runs: Sequence[Mapping[str, TableFailure]]) -> dict[str, tuple[str, str]]:
    """Returns the state and the reason for each "database.table" that must stop. `runs` has the failed tables of each consecutive failed
    run, newest first.
    """
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
    return why.reason if why.for_good else f"{why.reason} ({tries} runs in a row could not merge the table)"
