"""Decides when a draining run ends, and describes who settles its batches. `run.drain_run` calls this module.

For each delivery d of a batch, the run does these steps:

    takes d ─▶ its tags name d ─▶ merges d ─▶ acks d over RPC ─▶ reports d to Dagster ─▶ takes the next batch

The rows below say what happens if the run does not complete these steps. Unless a row says something else, the run's tags name d.

| the run | d is | result |
|---|---|---|
| died, failed or was canceled, with d merged or not | in flight | a tick hands d out again; a repeated merge changes nothing |
| merged d and succeeded, but could not reach the engine | in flight | a tick finds the successful run of d and acks d |
| died or ended after d was settled | acked | no run's tags name the next batch: the ticks request a run |
| died after d was settled and before it reported d | acked | the next draining run reports d (`drain_run.Unreported`) |
| continues, although Dagster has ended it | rolled back | d is no longer in flight: the run writes no table and takes no batch |
| got d, and died before its tags named d | in flight | no run's tags name d, and no draining run is open: the ticks request a run |
| sent an ack of d and got no answer | in flight or acked | the run succeeds: a tick acks d, or the ticks request a run |
| requested d and got no answer | in flight, now or later | the run succeeds with the tags of its last batch: the ticks request a run |

A run must never succeed while its tags name a batch that the run did not merge.
"""

from __future__ import annotations

from sluice.cdc_engine import limits


def why_leave(seconds: float, idle_seconds: float) -> str:
    """Returns why a draining run takes no further batch, as the end of a sentence. Returns "" if the run takes another batch. `seconds` is
    the time since the run began to drain. `idle_seconds` is the time for which it has waited for its next batch.
    """
    if seconds >= limits.DRAIN_SECONDS_MAX:
        return f"the run has merged batches for {seconds:.0f} s, and another run replaces it"
    if idle_seconds >= limits.DRAIN_IDLE_SECONDS_MAX:
        return f"no changes arrived for {idle_seconds:.0f} s"
    return ""
