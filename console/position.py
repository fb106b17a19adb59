"""`sluice position`: shows and sets where a destination stands. The rules: `cdc_engine.acts.position`."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any

from rich.table import Table

from cdc_engine.acts.position import SetPosition, set_position
from cdc_engine.config import DestinationConfig, SluiceConfig
from cdc_engine.destination_files import read_ledger
from cdc_engine.errors import ConfigurationError
from cdc_engine.instance.wiring import history_kept
from cdc_engine.meta.ledger import Ledger
from cdc_engine.parser.start_position import StartChoice
from cdc_engine.parser.time_search import choice_at
from cdc_engine.position import Position
from cdc_engine.table_meta.history.kept.repository import forget_history
from cdc_engine.time_words import time_us
from console.lake.tables import DestinationLake
from console.sources import ask_source, require_destination
from console.toolchain.errors import SetupError

_PLACE = re.compile(r"(?P<file>[^:/\\\s]+\.\d+):(?P<offset>\d+)")


@dataclasses.dataclass(frozen=True)
class Request:
    """What the operator asked for, as the choice the engine's own start decision takes; an empty choice is the latest place.

    `time_us`: the choice is the place of this time, which the source is asked for.
    """

    choice: StartChoice
    time_us: int | None = None

    @classmethod
    def parse(cls, place: str, gtid: str, *, latest: bool, moment: str = "") -> Request:
        """Raises ConfigurationError unless exactly one of the four was given, and well-formed."""
        if [bool(place), bool(gtid), latest, bool(moment)].count(True) != 1:
            raise ConfigurationError("say where to: one of FILE:OFFSET, --gtid SET, --time TIME or --latest")
        if moment:
            return cls(StartChoice(), time_us(moment, time.time_ns() // 1000))
        if gtid:
            return cls(StartChoice(gtid_set=gtid))
        if latest:
            return cls(StartChoice())
        found = _PLACE.fullmatch(place)
        if not found:
            raise ConfigurationError(f"{place!r} is not a place in a binlog; write FILE:OFFSET, as in binlog.000042:4")
        return cls(StartChoice(file=found["file"], offset=int(found["offset"])))


def saved_positions(config: SluiceConfig, destination: str = "") -> dict[str, Any]:
    """Destination → its saved position (None before the first start), epoch, and the batches that wait."""
    names = [require_destination(config, destination).name] if destination else sorted(config.destinations)
    return {name: _saved(read_ledger(config.destination_dir(name))) for name in names}


def render_positions(positions: dict[str, Any]) -> Table:
    shown = Table("destination", "acked up to", "epoch", "GTID set", "server", "waiting")
    for name, saved in positions.items():
        cursor = saved["cursor"] or {}
        at = f"{cursor['file']}:{cursor['offset']}" if cursor else "nothing yet"
        gtids, server = cursor.get("gtid_set", ""), saved["server_uuid"]
        shown.add_row(name, at, str(saved["epoch"]), gtids, server, str(len(saved["outstanding"])))
    return shown


def move(
    config: SluiceConfig, name: str, request: Request, *, confirm: Callable[[str], bool], say: Callable[[str], None]
) -> Position:
    """`acts.position.set_position` with the destination's source and lake. Raises SetupError when the operator says no."""
    destination = require_destination(config, name)
    directory = config.destination_dir(name)
    lake = DestinationLake(config, name)
    position = set_position(
        SetPosition(
            directory=directory,
            choice=_choice(destination, request),
            ask=lambda: ask_source(destination).facts,
            confirm=confirm,
            forget_history=lambda: forget_history(history_kept(destination, directory)),
            lake_epoch=lake.highest_epoch,
            take_over=lake.take_over,
        )
    )
    if position is None:
        raise SetupError("nothing was changed")
    say(f"{name} goes on from {position}; `sluice up` starts it")
    return position


def _choice(destination: DestinationConfig, request: Request) -> StartChoice:
    """Raises PositionLostError where the time that was asked for is gone."""
    if request.time_us is None:
        return request.choice
    asked = ask_source(destination)
    return choice_at(asked.source, asked.facts, request.time_us)


def _saved(ledger: Ledger) -> dict[str, Any]:
    cursor = ledger.cursor.to_json() if ledger.cursor else None
    waiting = [{"batch_id": batch.batch_id, "end": str(batch.end), "rows": batch.rows} for batch in ledger.outstanding]
    return {"cursor": cursor, "epoch": ledger.epoch, "server_uuid": ledger.server_uuid, "outstanding": waiting}
