"""Sends heartbeats to the current source, and switches to another source if the heartbeats fail. Started by `engine`.

The switch is one durable write of the record that names the source in use (`source.in_use`), so after a crash the record names either the
old or the new source. After the write the engine ends, and `launcher` starts another engine. The new engine connects to the new source,
finds where the stream continues there, and begins an epoch. `sluice source switch` writes the same record, and the next heartbeat notices
the change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import PositionLostError, SluiceError
from sluice.cdc_engine.instance.failover.by_time import by_time_of
from sluice.cdc_engine.instance.failover.takeover import Beats, TakeoverAnswer, in_order, refusal
from sluice.cdc_engine.instance.parts import EngineParts, epochs_of
from sluice.cdc_engine.instance.sources import source_at
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.parser.source_check import check_source
from sluice.cdc_engine.parser.start_position import Epochs
from sluice.cdc_engine.parser.stream.event_parser import EventParser
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.heartbeat import Heartbeat
from sluice.cdc_engine.source.in_use import address_chosen, use
from sluice.cdc_engine.source.server import Source

log = structlog.get_logger()


def sources_of(config: DestinationConfig) -> dict[str, Source]:
    """Returns the sources that conf/ names, by address, in the order of conf/."""
    return {each.address: source_at(config, each) for each in config.sources or (config.source,)}


def reading_now(config: DestinationConfig, directory: Path) -> DestinationConfig:
    """Returns the configuration of a destination with the source that was chosen last on any host, or the first source in conf/ if none was
    chosen. Raises MetaError if the record of the choice cannot be read, and ConfigurationError if conf/ does not have the chosen source.
    """
    return config.reading(address_chosen(directory) or config.sources[0].address) if config.sources else config


def takeover_answer(source: Source, file: str = "") -> TakeoverAnswer:
    """Queries a source for its facts, and checks whether Sluice can read this source. The facts include the creation time of the binlog
    file `file`, if `file` is not empty. Returns an error as the answer's `trouble`.
    """
    try:
        with contextlib.closing(SourceConnection(source)) as connection:
            facts = read_facts(connection, file)
        check_source(source, facts)
    except SluiceError as error:
        return TakeoverAnswer(address=source.address, facts=None, trouble=str(error))
    return TakeoverAnswer(address=source.address, facts=facts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailoverDependencies:
    """The callbacks of the engine that the failover calls. `position` returns the position at which another source must continue: the end
    of everything that was handed out or is being staged. It returns None if nothing was read yet. `epochs` returns the epochs of the
    ledger. `lacks` returns why the stream cannot continue on the current source, or an empty text if it can. `gives_way` is called once,
    when another source must be read.
    """

    directory: Path
    position: Callable[[], Position | None]
    epochs: Callable[[], Epochs]
    lacks: Callable[[], str]
    gives_way: Callable[[], None]


class Failover:
    """Watches the sources of a destination and switches between them. `trouble` may be called from any thread."""

    def __init__(self, config: DestinationConfig, dependencies: FailoverDependencies) -> None:
        self._config, self._dependencies, self._destination = config.heartbeat, dependencies, config
        self._sources, self._reading = sources_of(config), config.source.address
        self._captured = TableFilter(config.include, config.exclude).keeps
        self._heartbeat = Heartbeat(self._sources[self._reading], config.heartbeat.sql)
        self._beats, self._refused, self._broken = Beats(), "", ""
        self._stopping = threading.Event()

    def run(self, stopping: threading.Event) -> None:
        """Sends heartbeats until `stopping` is set. If another source must be read, calls `gives_way` and returns."""
        self._stopping = stopping
        try:
            while not stopping.wait(self._config.seconds):
                if self.beat_safely():
                    self._dependencies.gives_way()
                    return
        finally:
            self._heartbeat.close()

    def beat_safely(self) -> bool:
        """Calls `beat` and returns its result. If `beat` raises an error, stores the error for `trouble`, which reports it, and returns
        False.
        """
        try:
            gives_way, self._broken = self.beat(), ""
        # Catches all errors, because an error that ended this thread would silently end the checks.
        except Exception as error:
            log.warning("heartbeat_failed", reason=str(error))
            self._broken = str(error) or type(error).__name__
            return False
        return gives_way

    def beat(self) -> bool:
        """Sends one heartbeat. Returns whether another source must be read from now on.

        Raises MetaError if the record of the source in use cannot be read or written. Raises ConfigurationError if this host cannot query
        the source, for a reason that is not the source's failure.
        """
        chosen = address_chosen(self._dependencies.directory)
        if chosen != self._reading and chosen in self._sources:
            log.warning("source_switched", reading=self._reading, chosen=chosen, why="by command")
            return True
        self._beats = self._beats.after(self._heartbeat.failure() or self._dependencies.lacks())
        if self._beats.missed <= self._config.retries:
            self._refused = ""
            return False
        return self._config.switch and self._switched(chosen)

    def _switched(self, chosen: str) -> bool:
        """Switches to the first other source that can take over. Returns whether it switched. `chosen` is the address in the record of the
        source in use, as `beat` read it. Does not switch if this record was changed while the other sources were queried.
        """
        refused: dict[str, str] = {}
        for address in in_order(tuple(self._sources), self._reading):
            refused[address] = self._why_not(address)
            if not refused[address]:
                return self._taken(address, chosen)
        self._refused = _refusals(refused)
        return False

    def _why_not(self, address: str) -> str:
        """Returns why a source cannot take over, or an empty text if it can. A source that does not answer a heartbeat cannot take over,
        because the engine sends heartbeats to it after the switch.
        """
        try:
            position = self._dependencies.position()
            answer = takeover_answer(self._sources[address], position.file if position else "")
            by_time = by_time_of(self._sources[address], self._destination, self._captured)
            return refusal(position, answer, self._dependencies.epochs(), by_time) or self._silence_of(address)
        except Exception as error:  # Catches all errors, because the other sources must still be queried.
            return str(error) or type(error).__name__

    def _silence_of(self, address: str) -> str:
        heartbeat = Heartbeat(self._sources[address], self._config.sql)
        try:
            return heartbeat.failure()
        finally:
            heartbeat.close()

    def _taken(self, address: str, chosen: str) -> bool:
        """Records that the source `address` is read from now on, and returns True. Returns False and writes nothing if the engine was
        stopped, or if the record of the source in use no longer names `chosen`, because somebody has chosen another source during the
        queries.
        """
        if self._stopping.is_set() or address_chosen(self._dependencies.directory) != chosen:
            return False
        log.warning("source_switched", reading=self._reading, chosen=address, why=self._beats.failure)
        use(self._dependencies.directory, address, self._beats.failure)
        return True

    def trouble(self) -> str:
        """Returns a sentence if the source does not answer heartbeats, or if Sluice cannot check whether it does. Otherwise returns an
        empty text. The sentence about missing answers also says why no other source is read instead.
        """
        if self._broken:
            return f"Sluice cannot check whether {self._reading} answers: {self._broken}"
        if self._beats.missed <= self._config.retries:
            return ""
        off = "`heartbeat.switch` is off: switch to another source with `sluice source switch`"
        others = self._refused or ("Sluice checks the other sources" if self._config.switch else off)
        return (
            f"{self._reading} did not answer {self._beats.missed} heartbeats in a row ({self._beats.failure}); {others}"
        )


def failover_of(
    config: DestinationConfig,
    directory: Path,
    parts: EngineParts,
    *,
    position: Callable[[], Position | None],
    gives_way: Callable[[], None],
) -> Failover | None:
    """Returns the failover of an engine, or None if conf/ names only one source. `position` returns the position at which another source
    must continue, or None if nothing was read yet. `gives_way` is called once, when another source must be read.
    """
    if len(config.sources) <= 1:
        return None
    dependencies = FailoverDependencies(
        directory=directory,
        position=position,
        epochs=lambda: epochs_of(parts.meta),
        lacks=lambda: _unreadable(parts.parser),
        gives_way=gives_way,
    )
    return Failover(config, dependencies)


def _unreadable(parser: EventParser) -> str:
    """Returns why the stream cannot continue on the current source although the source answers, or an empty text if it can. The only reason
    that counts is that the source lacks transactions that another source may have.
    """
    return parser.lacks or (str(parser.last_error) if isinstance(parser.last_error, PositionLostError) else "")


def _refusals(refused: Mapping[str, str]) -> str:
    each = "; ".join(f"{address} cannot take over: {why}" for address, why in refused.items())
    return f"{each}. Sluice tries again with every heartbeat" if each else "no standby source is configured"
