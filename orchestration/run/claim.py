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
from orchestration.ports import FeedAwayError, MergeFailedError, Ports, RequestUnansweredError

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
    """Requests that the engine appends to the batch what came since it was staged, and claims the outcome for this run.

    The caller holds the run lock and has written nothing. Returns the batch as it is where nothing came, where it is not to be appended to,
    or where no engine gets the request. Raises MergeFailedError where the answer does not come, for the batch may get another end
    while it is merged; and where the run may take no batch any more.
    """
    try:
        if ports.conf_changed(reference.destination):
            return reference
        longer = ports.feed(directory, reference.destination).lengthen(reference)
    except RequestUnansweredError as error:
        raise MergeFailedError(
            f"nothing was written: the engine was requested to append to {reference} and did not answer, so the batch may get another end "
            f"at any time ({error}); it comes again in another run by itself"
        ) from error
    except (FeedAwayError, SluiceError) as error:
        say(f"{reference} is merged as it was staged: {error}")
        return reference
    if longer == reference:
        return reference
    failpoints.reach(failpoints.BEFORE_CLAIM)
    if given_up := claim(longer):
        raise MergeFailedError(f"{given_up}, so it takes no further batch")
    say(f"{reference} has become {longer}, with what came while this run started")
    return longer
