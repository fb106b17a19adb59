"""Which batch a run is at stands in its tags, from before it begins until it ends: so its record says of which batch its end speaks.

Runs that drain claim batch after batch (`drain_run`). A run of one batch claims it anew where it grew while the run started: a change then
waits for its run no longer than until the run begins to merge. What is left where either ends amid this: `drain.rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import dagster as dg

from cdc_engine.errors import SluiceError
from orchestration import failpoints
from orchestration.batch_reference import RUNS_TAG, BatchReference
from orchestration.ports import FeedAwayError, MergeFailedError, Ports

if TYPE_CHECKING:
    from pathlib import Path


class Claim(Protocol):
    def __call__(self, reference: BatchReference) -> str:
        """The run's tags name the batch from now on. Why the run may take none any more, or empty."""


def claim_of(instance: dg.DagsterInstance, run_id: str, runs: str) -> Claim:
    """The claim of a run of Dagster's: only while it counts as STARTED. `runs`: how it takes batches, as its tag says."""

    def claim(reference: BatchReference) -> str:
        run = instance.get_run_by_id(run_id)
        if run is None or run.status != dg.DagsterRunStatus.STARTED:
            return f"Dagster counts this run as {run.status.value if run else 'removed'}"
        instance.add_run_tags(run_id, {**reference.to_tags(), RUNS_TAG: runs})
        return ""

    return claim


def with_what_came(
    ports: Ports, directory: Path, reference: BatchReference, claim: Claim, say: Callable[[str], None]
) -> BatchReference:
    """The batch that a run is to merge, which holds the run lock and has not begun: with what came since it was cut, and then claimed.

    As it was where nothing came, it is not to grow, or no engine answers. Raises MergeFailedError where the run may take none any more.
    """
    try:
        if ports.conf_changed(reference.destination):
            return reference
        longer = ports.feed(directory, reference.destination).lengthen(reference)
    except (FeedAwayError, SluiceError) as error:
        say(f"{reference} is merged as it was cut: {error}")
        return reference
    if longer == reference:
        return reference
    failpoints.reach(failpoints.BEFORE_CLAIM)
    if given_up := claim(longer):
        raise MergeFailedError(f"{given_up}, so it takes no further batch")
    say(f"{reference} has become {longer}, with what came while this run started")
    return longer
