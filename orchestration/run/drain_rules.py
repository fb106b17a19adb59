"""Decides when a run that drains ends, and who settles what it merged. Pure; `run.drain_run` uses it.

    takes d ─▶ its tags name d ─▶ merges d ─▶ acks d over RPC ─▶ reports it to Dagster ─▶ takes the next

| the run, whose tags name d, | d is | result |
|---|---|---|
| died, failed or was canceled, d merged or not | in flight | by its record, a tick hands d out again; a repeated merge changes nothing |
| ended well, d merged, the endpoint closed | in flight | its record is a SUCCESS of d: a tick acks |
| died or ended after d was settled | acked | the ticks find a batch that no run's tags name, or none: they request a run |
| died after d was settled and before it was reported | acked | the next run that drains reports d (`drain_run.Unreported`) |
| was given up by Dagster and continues | rolled back | d is not the oldest batch: the run writes no table and takes no other batch |
| got d, and died before its tags named it | in flight | no run's tags name d, none is attached: the ticks request a run |
| sent an ack of d that was not answered | in flight or acked | it ends well: as in the second or the third row |
| sent a request for d that was not answered | in flight later | it ends well, its tags naming what it merged: the ticks request a run |

A run must never end well while its tags name a batch that it did not merge."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attached:
    """A draining run between two batches. `seconds`: since it attached. `idle_seconds`: since its last batch was settled."""

    seconds: float
    idle_seconds: float
    idle_seconds_max: float
    seconds_max: float


def why_leave(run: Attached) -> str:
    """Returns why the run takes no further batch, as the end of a sentence; empty if it takes one."""
    if run.seconds >= run.seconds_max:
        return f"it has been attached for {run.seconds:.0f} s, and another run replaces it"
    if run.idle_seconds >= run.idle_seconds_max:
        return f"no changes arrived for {run.idle_seconds:.0f} s"
    return ""
