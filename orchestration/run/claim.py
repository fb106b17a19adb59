"""Keeps a run's current batch in its tags, from before it starts the batch until it ends, so that the record of the run shows which batch
its end refers to.

Runs that drain claim batch after batch (`drain_run`). A run of one batch claims it again if the batch was extended while the run started,
so that a change waits for its run only until the run begins to merge. `drain_rules` describes the states in which either can end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import dagster as dg

from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import RUNS_TAG, BatchReference
from sluice.orchestration.base.ports import MergeFailedError, Ports, RequestUnansweredError, RunEngineAwayError

if TYPE_CHECKING:
    from pathlib import Path


class BatchClaim(Protocol):
    def __call__(self, reference: BatchReference) -> str:
        """Makes the run's tags name the batch. Returns why the run may not take any batch now, or an empty text."""


def claim_of(instance: dg.DagsterInstance, run_id: str, runs: str) -> BatchClaim:
    """Returns the claim of a Dagster run, which works only while the run counts as STARTED. `runs`: how the run takes batches, as its tag
    says.
    """

    def claim(reference: BatchReference) -> str:
        run = instance.get_run_by_id(run_id)
        if run is None or run.status != dg.DagsterRunStatus.STARTED:
            return f"Dagster shows this run as {run.status.value if run else 'removed'}"
        instance.add_run_tags(run_id, {**reference.to_tags(), RUNS_TAG: runs})
        return ""

    return claim


def with_what_came(
    ports: Ports, directory: Path, reference: BatchReference, claim: BatchClaim, say: Callable[[str], None]
) -> BatchReference:
    """Requests that the engine appends to the batch the changes since it was staged, and claims the result for this run.

    The caller holds the run lock and has written nothing. Returns the batch unchanged if there are no changes, if it must not be
    extended, or if no engine receives the request. Raises MergeFailedError if no answer arrives, because the batch may then be extended
    while it is merged; and if the run may not take any batch now.
    """
    try:
        if ports.conf_changed(reference.destination):
            return reference
        longer = ports.feed(directory, reference.destination).append_to(reference)
    except RequestUnansweredError as error:
        raise MergeFailedError(
            f"nothing was written: the engine was requested to append to {reference} and did not answer, so "
            f"the batch may get another end at any time ({error}); another run merges it, and nothing has to "
            "be done"
        ) from error
    except (RunEngineAwayError, SluiceError) as error:
        say(f"{reference} is merged as it was staged, without newer changes: {error}")
        return reference
    if longer == reference:
        return reference
    failpoints.reach(failpoints.BEFORE_CLAIM)
    if given_up := claim(longer):
        raise MergeFailedError(f"{given_up}, so it takes no further batch")
    say(f"{reference} was extended to {longer} with the changes that arrived while this run started")
    return longer
