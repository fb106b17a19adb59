"""A run that drains: it stays attached and merges batch after batch, each a delivery of its own, told and settled on its own.

`assets` calls it inside a run. The run lock is held while a batch is merged and not between two, so what publishes or backfills gets its
turn. Which of its batches a run is at stands in its tags (`Claim`), so its record means at any time what that of a run of one batch does;
`drain.rules` has the table of what follows where it ends.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cdc_engine.errors import BatchNotFoundError, SluiceError
from orchestration import failpoints
from orchestration.batch_reference import BatchReference
from orchestration.drain import rules
from orchestration.ports import Feed, FeedAwayError, MergeFailedError, Ports
from orchestration.run.claim import Claim
from orchestration.run.merge_run import MergedTable, merge_one, only_writer

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig

_log = logging.getLogger(__name__)

HAND_OUT_SECONDS = 2.0  # of one question for the next batch; between two it is looked whether to leave
ANSWER_SECONDS_MAX = 3.0  # an engine that is silent for longer is left to the ticks, which settle as well
GIVE_WAY_SECONDS_MAX = 5.0  # for who waits for the run lock to take it
POLL_SECONDS = 0.05
NEWS_SECONDS = 60.0  # of a long merge, between two sentences

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainRun:
    """What a run that drains works with. `claim`: see there; `run`: its id; `say`: to its log in Dagster."""

    ports: Ports
    config: SluiceConfig
    claim: Claim
    run: str
    say: Callable[[str], None]


def drain(work: DrainRun, first: BatchReference) -> Iterator[MergedTable]:
    """Merges the batch that the run was made for, and those that follow; yields the tables of each once it is merged.

    A batch is settled once its tables were taken from here. Raises MergeFailedError after yielding what was done; its tags then name the
    batch that failed.
    """
    directory = work.config.destination_dir(first.destination)
    _claim(work, first)
    with work.ports.files().drain_lock(directory) as alone:
        yield from _merged(work, directory, first)
        if not alone:
            work.say("another run is attached and drains; this one ends with its batch")
            return
        try:
            feed = work.ports.feed(directory, first.destination)
            yield from _rest(work, directory, feed, first)
        except FeedAwayError as error:
            work.say(f"this run ends: {error}; what it merged is settled by the next tick")


def _rest(work: DrainRun, directory: Path, feed: Feed, first: BatchReference) -> Iterator[MergedTable]:
    begun, every_seconds = time.monotonic(), work.config.destinations[first.destination].drain.every_seconds
    taken = begun
    reference: BatchReference | None = first
    while reference is not None and _settled(work, feed, reference):
        threading.Event().wait(max(0.0, taken + every_seconds - time.monotonic()))
        reference, taken = _next(work, feed, first.destination, begun), time.monotonic()
        if reference is not None:
            yield from _merged(work, directory, reference)


def _merged(work: DrainRun, directory: Path, reference: BatchReference) -> Iterator[MergedTable]:
    """One batch, under the run lock; told in one line."""
    _give_way(work, directory)
    begun, tables, rows = time.monotonic(), 0, 0
    with only_writer(work.ports, work.config, reference.destination, work.say):
        for merged in merge_one(work.ports, work.config, reference, _news(work.say), run=work.run):
            tables, rows = tables + 1, rows + merged.outcome.source_rows
            yield merged
    work.say(f"{reference}: {rows} rows of {tables} tables merged in {time.monotonic() - begun:.2f} s")


def _news(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says one sentence a minute of a long merge: a run that gives no news for too long is ended."""
    last = [time.monotonic()]

    def news(sentence: str) -> None:
        if time.monotonic() - last[0] < NEWS_SECONDS:
            _log.debug(sentence)
            return
        last[0] = time.monotonic()
        say(sentence)

    return news


def _give_way(work: DrainRun, directory: Path) -> None:
    """Whoever waits for the run lock gets it before the next batch does."""
    deadline = time.monotonic() + GIVE_WAY_SECONDS_MAX
    while work.ports.files().run_lock_wanted(directory) and time.monotonic() < deadline:
        threading.Event().wait(POLL_SECONDS)


def _settled(work: DrainRun, feed: Feed, reference: BatchReference) -> bool:
    """Whether the run goes on: the batch is acked, by this call or another hand. Raises FeedAwayError."""
    try:
        _answered(lambda: feed.ack(reference))
    except BatchNotFoundError:
        work.say(
            f"{reference} was settled by another hand; where it was rolled back it comes again and changes nothing"
        )
    except SluiceError as error:
        work.say(f"this run ends: {error}; what it merged is settled by the next tick")
        return False
    return True


def _next(work: DrainRun, feed: Feed, destination: str, begun: float) -> BatchReference | None:
    """The next batch, named by the run's tags; None where the run is to end. Raises FeedAwayError or MergeFailedError."""
    limits, idle_since = work.config.destinations[destination].drain, time.monotonic()
    while True:
        now = time.monotonic()
        why = rules.why_leave(
            rules.Attached(
                seconds=now - begun,
                idle_seconds=now - idle_since,
                idle_seconds_max=limits.idle_seconds,
                seconds_max=limits.seconds_max,
            )
        )
        try:
            why = why or work.ports.conf_changed(destination)
            offer = None if why else _answered(lambda: feed.hand_out(HAND_OUT_SECONDS))
            why = why or work.ports.conf_changed(destination)  # such a batch is for a run with the conf/ of now
        except SluiceError as error:
            offer, why = None, str(error)
        if offer is None or offer.leave or why:
            work.say(f"this run ends: {why or (offer.leave if offer else '')}")
            return None
        if offer.reference is not None:
            failpoints.reach(failpoints.BEFORE_CLAIM)
            _claim(work, offer.reference)
            return offer.reference


def _claim(work: DrainRun, reference: BatchReference) -> None:
    if given_up := work.claim(reference):
        raise MergeFailedError(f"{given_up}, so it takes no further batch")


def _answered(ask: Callable[[], Answer]) -> Answer:
    """Asks until an engine answers. Raises FeedAwayError after a few seconds, else what the engine does."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            return ask()
        except FeedAwayError:
            if time.monotonic() >= deadline:
                raise
        threading.Event().wait(POLL_SECONDS)
