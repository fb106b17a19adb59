"""Holds the engines of a process to what conf/ and its operators want: looks, asks `rules`, and has it done.

Each act has a thread of its own, one at a time a destination: an engine that is slow to end or to start holds up no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from cdc_engine.destination_files import lease_holder, read_ledger
from cdc_engine.errors import SluiceError
from cdc_engine.keeping import orders
from cdc_engine.keeping.conf_watch import ConfWatch
from cdc_engine.keeping.in_use import InUse
from cdc_engine.keeping.rules import Act, Facts, decide

LOOK_SECONDS = 0.5

log = structlog.get_logger()


class Engines(Protocol):
    """The engines of this process; `launcher` is them."""

    def kept(self) -> Mapping[str, str]:
        """Destination → digest of the file with which its engine here was made; empty while that begins."""

    def gave_way(self, destination: str) -> bool:
        """Whether the engine here has ended for another one, which reads another source. Consumers may wait where no tick comes."""

    def take_up(self, destination: str) -> None:
        """Starts the engine. Raises SluiceError."""

    def put_away(self, destination: str) -> None:
        """Ends the engine; returns when its lease is free."""

    def give_up(self, destination: str) -> None:
        """As `put_away`; and this process leaves the destination to others for a while."""


class Keeper:
    """`elsewhere`: whether another process holds the lease of a destination's directory."""

    def __init__(self, engines: Engines, elsewhere: Callable[[Path], bool] | None = None) -> None:
        self._engines, self._elsewhere = engines, elsewhere or _held
        self._tried: dict[str, str] = {}
        self._directories: dict[str, Path] = {}
        self._busy: dict[str, threading.Thread] = {}

    def look(self, in_use: InUse) -> None:
        """Begins what is to be done. Waits for nothing."""
        kept = self._engines.kept()
        names = {*in_use.config.destinations, *in_use.config.groups}
        self._directories |= {name: in_use.config.destination_dir(name) for name in names}
        for name in sorted({*names, *kept}):
            if (busy := self._busy.get(name)) is not None and busy.is_alive():
                continue
            try:
                act, why = decide(self._facts(name, in_use, kept))
            except (
                SluiceError
            ) as error:  # whoever has the orders does not answer: nothing is done that may be forbidden
                log.debug("orders_unknown", destination=name, reason=str(error))
                continue
            if act is not Act.LEAVE:
                self._begin(name, act, why, in_use.digest(name))

    def wait(self, seconds: float) -> None:
        """Until all that was begun is done."""
        for thread in list(self._busy.values()):
            thread.join(seconds)

    def _facts(self, name: str, in_use: InUse, kept: Mapping[str, str]) -> Facts:
        directory, conf = self._directories.get(name), in_use.digest(name)
        running = (kept[name] or conf) if name in kept else ""
        wish = orders.asked(directory) if directory is not None else None
        return Facts(
            conf=conf,
            running=running,
            tried=self._tried.get(name, ""),
            stopped=directory is not None and orders.stopped(directory) is not None,
            asked=wish.wish if wish else "",
            elsewhere=wish is not None and directory is not None and not running and self._elsewhere(directory),
            gave_way=name in kept and self._engines.gave_way(name),
        )

    def _begin(self, name: str, act: Act, why: str, digest: str) -> None:
        # What was stopped is started once nothing speaks against it.
        self._tried[name] = "" if act is Act.STOP else digest
        log.info("instance_act", destination=name, act=str(act), why=why)
        thread = threading.Thread(target=self._do, args=(name, act), name=f"{act}-{name}", daemon=True)
        self._busy[name] = thread
        thread.start()

    def _do(self, name: str, act: Act) -> None:
        directory = self._directories.get(name)
        try:
            if act in {Act.RESTART, Act.RELEASE} and directory is not None:
                orders.done(directory)
            if act is Act.RELEASE:
                self._engines.give_up(name)
            elif act in {Act.STOP, Act.RESTART}:
                self._engines.put_away(name)
            if act in {Act.START, Act.RESTART}:
                self._engines.take_up(name)
            if act is Act.STOP and directory is not None:
                log.info("instance_stopped", destination=name, stays=what_stays(directory))
        except SluiceError as error:  # the ticks try again, and say it too
            log.warning("instance_act_failed", destination=name, act=str(act), state=error.code, reason=str(error))


def follow(
    watch: ConfWatch,
    lookers: Sequence[Callable[[InUse], None]],
    stopping: threading.Event,
    seconds: float = LOOK_SECONDS,
) -> None:
    """Looks at conf/ until it is told to stop, and has the others look at what is in use."""
    told = ""
    while not stopping.wait(seconds):
        try:
            watch.look()
            for look in lookers:
                look(watch.in_use)
            told = ""
        except Exception as error:  # nobody else would look any more
            if (why := f"{type(error).__name__}: {error}") != told:
                log.exception("look_failed", reason=why)
            told = why


def what_stays(directory: Path) -> str:
    """What a destination without an engine has, a sentence: nothing of it is lost."""
    try:
        ledger = read_ledger(directory)
    except SluiceError as error:
        return f"its files in {directory}; its ledger cannot be read: {error}"
    out = f", {len(ledger.outstanding)} batch(es) out that no ack has come for" if ledger.outstanding else ""
    place = f"acked up to {ledger.cursor}" if ledger.cursor else "nothing acked yet"
    return (
        f"its ledger stays in {directory} ({place}{out}): with its file back in conf/destinations it goes on from there"
    )


def _held(directory: Path) -> bool:
    try:
        holder = lease_holder(directory)
    except SluiceError:
        return True  # not known: then nothing is taken from another
    return holder is not None and holder.held
