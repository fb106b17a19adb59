"""Asks the source that is read for a sign of life, and has another read in its place when it gives none. Started by `engine`.

The change itself is one durable write (`source.in_use`): the engine then says that it is not the one any more, and whoever keeps it
(`launcher`) starts another, which connects there, proves where its stream goes on, and begins an epoch. A crash at any moment leaves the
one source or the other named. `sluice source switch` writes the same file, and is noticed with the next beat.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from cdc_engine.config import DestinationConfig
from cdc_engine.errors import PositionLostError, SluiceError
from cdc_engine.instance.failover.by_time import by_time_of
from cdc_engine.instance.failover.takeover import Answer, Beats, in_turn, refusal
from cdc_engine.instance.wiring import EngineParts, epochs_of, source_at
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.parser.event_parser import EventParser
from cdc_engine.parser.server_facts import read_facts
from cdc_engine.parser.source_check import check_source
from cdc_engine.parser.start_position import Epochs
from cdc_engine.position import Position
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.source.heartbeat import Heartbeat
from cdc_engine.source.in_use import address_chosen, use
from cdc_engine.source.server import Source

log = structlog.get_logger()


def sources_of(config: DestinationConfig) -> dict[str, Source]:
    """By address those that conf/ names, the master first."""
    return {each.address: source_at(config, each) for each in config.sources or (config.source,)}


def reading_now(config: DestinationConfig, directory: Path) -> DestinationConfig:
    """With the source that was chosen last, on whichever host. Raises ConfigurationError, MetaError."""
    return config.reading(address_chosen(directory) or config.sources[0].address) if config.sources else config


def ask(source: Source, file: str = "") -> Answer:
    """What a source says of itself, and whether it can be captured. `file`: of which it is asked when it was created."""
    try:
        with contextlib.closing(SourceConnection(source)) as connection:
            facts = read_facts(connection, file)
        check_source(source, facts)
    except SluiceError as error:
        return Answer(address=source.address, facts=None, trouble=str(error))
    return Answer(address=source.address, facts=facts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hands:
    """What the failover needs of the engine. `position`: where reading goes on after all that was handed out. `lacks`: what the source
    that is read lacks of that, a sentence, or empty. `gives_way`: called once, when another is to be read.
    """

    directory: Path
    position: Callable[[], Position | None]
    epochs: Callable[[], Epochs]
    lacks: Callable[[], str]
    gives_way: Callable[[], None]


class Failover:
    """Of a destination with several sources. `trouble` may be called from any thread."""

    def __init__(self, config: DestinationConfig, hands: Hands) -> None:
        self._config, self._hands, self._allowed = config.heartbeat, hands, config.failover
        self._sources, self._reading = sources_of(config), config.source.address
        self._captured = TableFilter(config.include, config.exclude).keeps
        self._heartbeat = Heartbeat(
            self._sources[self._reading], config.heartbeat.sql, config.heartbeat.timeout_seconds
        )
        self._beats, self._refused, self._broken = Beats(), "", ""
        self._stopping = threading.Event()

    def run(self, stopping: threading.Event) -> None:
        """Beats until it is stopped, or another source is to be read."""
        self._stopping = stopping
        try:
            while not stopping.wait(self._config.seconds):
                if self.beat_safely():
                    self._hands.gives_way()
                    return
        finally:
            self._heartbeat.close()

    def beat_safely(self) -> bool:
        """As `beat`; what hinders it is in `trouble`."""
        try:
            gives_way, self._broken = self.beat(), ""
        except Exception as error:  # of whatever kind: a watch that ended silently would look no more
            log.warning("heartbeat_failed", reason=str(error))
            self._broken = str(error) or type(error).__name__
            return False
        return gives_way

    def beat(self) -> bool:
        """One question; whether another source is to be read from now on. Raises MetaError, ConfigurationError."""
        chosen = address_chosen(self._hands.directory)
        if chosen != self._reading and chosen in self._sources:
            log.warning("source_switched", reading=self._reading, chosen=chosen, why="by command")
            return True
        self._beats = self._beats.after(self._heartbeat.failure() or self._hands.lacks())
        if self._beats.missed <= self._config.retries:
            self._refused = ""
            return False
        return self._config.switch and self._switched(chosen)

    def _switched(self, chosen: str) -> bool:
        """To the first of the others that can take over. `chosen`: what the file said before they were asked."""
        refused: dict[str, str] = {}
        for address in in_turn(tuple(self._sources), self._reading):
            refused[address] = self._why_not(address)
            if not refused[address]:
                return self._taken(address, chosen)
        self._refused = _told(refused)
        return False

    def _why_not(self, address: str) -> str:
        """Why it cannot take over, a sentence; empty when it can. It must give the sign of life that it will be asked for."""
        try:
            position = self._hands.position()
            answer = ask(self._sources[address], position.file if position else "")
            by_time = by_time_of(self._sources[address], self._allowed, self._captured)
            return refusal(position, answer, self._hands.epochs(), by_time) or self._silence_of(address)
        except Exception as error:  # of whatever kind: the others are still to be asked
            return str(error) or type(error).__name__

    def _silence_of(self, address: str) -> str:
        heartbeat = Heartbeat(self._sources[address], self._config.sql, self._config.timeout_seconds)
        try:
            return heartbeat.failure()
        finally:
            heartbeat.close()

    def _taken(self, address: str, chosen: str) -> bool:
        """Not where the engine was ended while the others were asked, or somebody else has chosen: then it is theirs to say."""
        if self._stopping.is_set() or address_chosen(self._hands.directory) != chosen:
            return False
        log.warning("source_switched", reading=self._reading, chosen=address, why=self._beats.failure)
        use(self._hands.directory, address, self._beats.failure)
        return True

    def trouble(self) -> str:
        """That the source gives no sign of life, and why no other is read in its place; empty while all is well."""
        if self._broken:
            return f"nobody looks whether {self._reading} answers: {self._broken}"
        if self._beats.missed <= self._config.retries:
            return ""
        off = "`heartbeat.switch` is off: `sluice source switch` takes another"
        others = self._refused or ("the others are asked" if self._config.switch else off)
        return (
            f"{self._reading} did not answer {self._beats.missed} heartbeats in a row ({self._beats.failure}); {others}"
        )


def failover_of(
    config: DestinationConfig, directory: Path, rooms: EngineParts, gives_way: Callable[[], None]
) -> Failover | None:
    """Of an engine whose rooms are made; None where no other source stands by."""
    if len(config.sources) <= 1:
        return None
    hands = Hands(
        directory=directory,
        position=lambda: rooms.meta.ledger.resume_position,
        epochs=lambda: epochs_of(rooms.meta),
        lacks=lambda: _unreadable(rooms.parser),
        gives_way=gives_way,
    )
    return Failover(config, hands)


def _unreadable(parser: EventParser) -> str:
    """Why a source that answers cannot be read on from: another may have what it lacks or has purged."""
    return parser.lacks or (str(parser.last_error) if isinstance(parser.last_error, PositionLostError) else "")


def _told(refused: Mapping[str, str]) -> str:
    each = "; ".join(f"{address} cannot take over: {why}" for address, why in refused.items())
    return f"{each}. It is tried again with every beat" if each else "no other source stands by"
