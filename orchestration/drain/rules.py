"""When a run that drains ends, and who settles what it merged. Pure; `run.drain_run` asks.

    takes d ─▶ its tags name d ─▶ merges d ─▶ says so in Dagster ─▶ settles d by the door ─▶ takes the next

| the run, its tags naming d, | d | what follows |
|---|---|---|
| died, failed or was canceled, d merged or not | out | its record says so: a tick hands d out again, whose replay writes nothing twice |
| ended well, d merged, the door shut | out | its record is a SUCCESS of d: a tick acks |
| died or ended after d was settled | acked | the ticks find another batch, or none, that no run's tags name: they ask for a run |
| was given up by Dagster and goes on | rolled back | d is not the head any more: it writes no table and takes no further batch |
| was handed d, and died before its tags named it | out | no run's tags name d, none is attached: the ticks ask for a run |
| sent an ack of d that was not answered | out or acked | it ends well: as the second or the third line |
| sent a request for d that was not answered | out later | it ends well, its tags naming what it merged: the ticks ask for a run |

A run of one batch whose batch was appended to is where a run that drains is after it was handed its next batch. Where its request was not
answered, it fails before it writes: its tags name the batch that it was made for, which is rolled back unless another has replaced it.
So a run must never end well while its tags name a batch that it did not merge.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attached:
    """A run between two batches. `seconds`: since it is attached; `idle_seconds`: since its last batch was settled."""

    seconds: float
    idle_seconds: float
    idle_seconds_max: float
    seconds_max: float


def why_leave(run: Attached) -> str:
    """Why it takes no further batch, a sentence's end; empty where it does."""
    if run.seconds >= run.seconds_max:
        return f"it has been attached for {run.seconds:.0f} s, and another run takes its place"
    if run.idle_seconds >= run.idle_seconds_max:
        return f"nothing came for {run.idle_seconds:.0f} s"
    return ""
