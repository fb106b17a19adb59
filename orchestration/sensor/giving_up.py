"""Decides which tables stop because they cannot be merged, so that their batch continues without them. Pure; `tick` carries it out.

It decides from the run records of the batch: what its newest run reported, and what the runs of earlier deliveries did. A table whose
failure no retry can fix stops at once. Another one stops after TRIES_MAX consecutive runs that failed for a reason of that table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from sluice.orchestration.base.ports import TableFailure

TRIES_MAX = 4  # With the waits of `backoff`, these take more than a minute.


def tables_to_stop(runs: Sequence[Mapping[str, TableFailure]]) -> dict[str, tuple[str, str]]:
    """Returns "database.table" → (state, reason) for the tables to stop. `runs`: the table failures of the consecutive failed runs, newest
    first.
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
    return why.reason if why.for_good else f"{why.reason} ({tries} runs in a row could not merge it)"
