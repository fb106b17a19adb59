"""Starts, restarts and stops the engines of a process as conf/ and operators require: collects facts about each engine, lets `rules`
decide, and carries out the decision.

Each start, restart or stop runs in a separate thread, one at a time per destination. So an engine that is slow to start or stop does not
delay other engines. If an engine runs nowhere, the keeper tries at intervals to start it. It does not wait for Dagster's ticks, so a
standby host takes over by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from sluice.cdc_engine.destination_files import lease_holder, read_ledger
from sluice.cdc_engine.errors import LeaseLostError, SluiceError
from sluice.cdc_engine.keeping import orders
from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.in_use import InUse
from sluice.cdc_engine.keeping.remote_conf.pull import poll
from sluice.cdc_engine.keeping.rules import KeeperAct, KeeperFacts, decide
from sluice.cdc_engine.keeping.served import why_not_served

LOOK_SECONDS = 0.5
STANDBY_SECONDS = 1.0  # The interval at which the keeper checks a lease that another process holds.
# The interval at which the keeper tries again to start an engine after a failed start. Dagster's ticks have the same interval.
RETRY_SECONDS = 5.0

log = structlog.get_logger()


class Engines(Protocol):
    """The engines of this process. `launcher` implements this protocol."""

    def kept(self) -> Mapping[str, str]:
        """Returns the digest of the settings with which each engine of this process was made, by destination. The digest is "" until the
        settings are read.
        """

    def ended(self, destination: str) -> bool:
        """Returns whether the destination's engine in this process has ended by itself, so that another engine must be started."""

    def take_up(self, destination: str) -> None:
        """Starts the engine. Raises LeaseLostError if another process runs the destination, or if an operator released the destination on
        this host shortly before. Raises another SluiceError if the start fails.
        """

    def put_away(self, destination: str) -> None:
        """Stops the engine. When the call returns, the engine's lease is free."""

    def give_up(self, destination: str) -> None:
        """Stops the engine, and makes `take_up` refuse the destination for a while, so that another host takes it over."""


class Keeper:
    """Starts, restarts and stops engines as `rules` decides. `elsewhere` returns whether another process holds the lease of a
    destination's directory. `clock` is a monotonic clock.
    """

    def __init__(
        self,
        engines: Engines,
        elsewhere: Callable[[Path], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines, self._elsewhere, self._clock = engines, elsewhere or _held, clock
        self._tried: dict[str, str] = {}
        self._again_at: dict[str, float] = {}  # Destination → time of the next attempt to start its engine, by `clock`.
        # Destination → why the last start failed, so that each reason is logged once.
        self._failed: dict[str, str] = {}
        self._directories: dict[str, Path] = {}
        self._busy: dict[str, threading.Thread] = {}

    def look(self, in_use: InUse) -> None:
        """Begins every start, restart, stop or release that `rules` decides for now. Does not wait until they are complete."""
        kept = self._engines.kept()
        names = set(in_use.config.streams)
        self._directories |= {name: in_use.config.destination_dir(name) for name in names}
        for name in sorted({*names, *kept}):
            if (busy := self._busy.get(name)) is not None and busy.is_alive():
                continue
            try:
                act, why = decide(self._facts(name, in_use, kept))
            except SluiceError as error:
                # Starts nothing: the record store with the operators' requests does not answer, and a request could forbid the start.
                log.debug("operator_orders_not_read", destination=name, reason=str(error))
                continue
            if act is not KeeperAct.LEAVE:
                self._begin(name, act, why, in_use.digest(name))

    def wait(self, seconds: float) -> None:
        """Waits up to `seconds` for each start, restart, stop or release that was begun."""
        for thread in list(self._busy.values()):
            thread.join(seconds)

    def _facts(self, name: str, in_use: InUse, kept: Mapping[str, str]) -> KeeperFacts:
        directory, conf = self._directories.get(name), in_use.digest(name)
        running = (kept[name] or conf) if name in kept else ""
        order = orders.requested(directory) if directory is not None else None
        due = not running and self._clock() >= self._again_at.get(name, 0.0)
        looks = directory is not None and not running and (order is not None or due)
        if due:
            self._again_at[name] = self._clock() + STANDBY_SECONDS
        return KeeperFacts(
            conf=conf,
            running=running,
            tried=self._tried.get(name, ""),
            stopped=bool(why_not_served(name)) or (directory is not None and orders.stopped(directory) is not None),
            requested=order.kind if order else "",
            elsewhere=looks and directory is not None and self._elsewhere(directory),
            ended=name in kept and self._engines.ended(name),
            due=due,
        )

    def _begin(self, name: str, act: KeeperAct, why: str, digest: str) -> None:
        # Records the settings of the last attempt to start the engine. The module `rules` starts an engine at once if its settings differ
        # from the recorded ones, and otherwise after a pause. A stop clears the record, so that the engine starts at once when the
        # operator's request to stay stopped is removed.
        self._tried[name] = "" if act is KeeperAct.STOP else digest
        if name not in self._failed:
            log.info("instance_act", destination=name, act=str(act), why=why)
        thread = threading.Thread(target=self._do, args=(name, act), name=f"{act}-{name}", daemon=True)
        self._busy[name] = thread
        thread.start()

    def _do(self, name: str, act: KeeperAct) -> None:
        directory = self._directories.get(name)
        try:
            if act in {KeeperAct.RESTART, KeeperAct.RELEASE} and directory is not None:
                orders.done(directory)
            if act is KeeperAct.RELEASE:
                self._engines.give_up(name)
            elif act in {KeeperAct.STOP, KeeperAct.RESTART}:
                self._engines.put_away(name)
            if act in {KeeperAct.START, KeeperAct.RESTART}:
                self._engines.take_up(name)
            if act is KeeperAct.STOP and directory is not None:
                log.info("instance_stopped", destination=name, stays=what_stays(directory))
            self._failed.pop(name, None)
        except SluiceError as error:
            self._retry_later(name, act, error)

    def _retry_later(self, name: str, act: KeeperAct, error: SluiceError) -> None:
        """Sets the time of the next attempt to start the engine. Logs the reason of the failure if it differs from the previous reason."""
        standby = isinstance(error, LeaseLostError)
        self._again_at[name] = self._clock() + (STANDBY_SECONDS if standby else RETRY_SECONDS)
        # Compares only the code of a LeaseLostError. Its message may contain a number of seconds, so each message would count as a new
        # reason.
        why = error.code if standby else f"{error.code}: {error}"
        if self._failed.get(name) != why:
            say = log.info if standby else log.warning
            say("instance_act_failed", destination=name, act=str(act), state=error.code, reason=str(error))
        self._failed[name] = why


def follow(
    watch: ConfWatch,
    lookers: Sequence[Callable[[InUse], None]],
    stopping: threading.Event,
    seconds: float = LOOK_SECONDS,
) -> None:
    """Reads conf/ every `seconds` until `stopping` is set, and calls each of `lookers` with the configuration in use. A separate thread
    pulls conf/ if conf/remote.yaml exists.
    """
    directory = watch.in_use.files.directory
    threading.Thread(target=poll, args=(directory, stopping), name="pull-conf", daemon=True).start()
    logged = ""
    while not stopping.wait(seconds):
        try:
            watch.look()
            for look in lookers:
                look(watch.in_use)
            logged = ""
        # Catches all errors: if this loop ended, no change of conf/ would be noticed any more.
        except Exception as error:
            if (why := f"{type(error).__name__}: {error}") != logged:
                log.exception("conf_not_checked", reason=why)
            logged = why


def what_stays(directory: Path) -> str:
    """Returns a sentence that says which files and which ledger of a destination remain after its engine was stopped."""
    try:
        ledger = read_ledger(directory)
    except SluiceError as error:
        return (
            f"the files of the destination stay in {directory}, and the ledger in that folder cannot be read: {error}"
        )
    out = f", {len(ledger.outstanding)} batch(es) without an ack" if ledger.outstanding else ""
    acked = f"acked up to {ledger.cursor}" if ledger.cursor else "nothing acked yet"
    return (
        f"the ledger of the destination stays in {directory} ({acked}{out}): the destination continues from "
        "this ledger if it is started again, or if its file in conf/destinations is restored"
    )


def _held(directory: Path) -> bool:
    try:
        holder = lease_holder(directory)
    except SluiceError:
        return True  # Counts as held: the store of the lease does not answer, so another process may hold the lease.
    return holder is not None and holder.held
