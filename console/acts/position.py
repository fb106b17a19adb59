"""Implements `sluice position`: shows and sets the position of a destination. `cdc_engine.acts.position` decides whether a position is
permitted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from rich.table import Table

from sluice.cdc_engine.acts.position import SetPosition, set_position
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.engine.kept_state import history_kept
from sluice.cdc_engine.instance.sources import archive_of, reader_of, source_of
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.decision import RequestedPosition
from sluice.cdc_engine.parser.positions.finding import exact_position
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.time_text import time_us
from sluice.console.lake.tables import DestinationLake
from sluice.console.source.query import query_source, require_destination
from sluice.console.toolchain.errors import SetupError

_POSITION = re.compile(r"(?P<file>[^:/\\\s]+\.\d+)(:(?P<offset>\d+))?")


def request(position: str, gtid: str, *, latest: bool, moment: str = "", earliest: bool = False) -> RequestedPosition:
    """Returns the position that the arguments of `sluice position set` name. `position` is FILE or FILE:OFFSET, `gtid` is a GTID set, and
    `moment` is a time. Each of these texts is empty if it was not given. With `moment`, a FILE limits the search for the time to this file.
    Raises ConfigurationError if the arguments name no position or several positions, or if a position is malformed.
    """
    if [bool(position or moment), bool(gtid), latest, earliest].count(True) != 1:
        raise ConfigurationError(
            "give the position: one of FILE, FILE:OFFSET, --gtid SET, --time TIME (with FILE: search only "
            "that file), --earliest or --latest"
        )
    at_us = time_us(moment, time.time_ns() // 1000) if moment else None
    if not position:
        return RequestedPosition(gtid_set=gtid, time_us=at_us, earliest=earliest)
    found = _POSITION.fullmatch(position)
    if not found:
        raise ConfigurationError(
            f"{position!r} is not a position in a binlog; write FILE:OFFSET, such as binlog.000042:4"
        )
    if moment and found["offset"]:
        raise ConfigurationError("give either an offset or a time in the file, not both")
    return RequestedPosition(
        file=found["file"], offset=int(found["offset"]) if found["offset"] else None, time_us=at_us
    )


def saved_positions(config: SluiceConfig, destination: str = "") -> dict[str, Any]:
    """Returns destination → what its ledger has: the cursor, the epoch, the server's UUID and the batches in flight. If `destination` is
    empty, the result has all destinations. The cursor is None while the destination has no position, for example before its first start.
    """
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
    config: SluiceConfig,
    name: str,
    wanted: RequestedPosition,
    *,
    confirm: Callable[[str], bool],
    say: Callable[[str], None],
) -> Position:
    """Sets the position at which a destination continues at its next start, and returns this position. `confirm` gets a question for the
    operator, and returns the answer. Raises SetupError if the operator declines.
    """
    destination = require_destination(config, name)
    directory = config.destination_dir(name)
    lake, source, archive = DestinationLake(config, name), source_of(destination), archive_of(destination)
    position = set_position(
        SetPosition(
            directory=directory,
            find=lambda facts: exact_position(source, facts, wanted, archive, reader=reader_of(destination)),
            query_source=lambda: query_source(destination).facts,
            confirm=confirm,
            forget_history=lambda token: history_kept(directory, token).replace([]),
            lake_epoch=lake.highest_epoch,
            take_over=lake.take_over,
            reachable=lambda facts: BinlogFiles(source, facts, archive).reachable,
        )
    )
    if position is None:
        raise SetupError(f"nothing was changed: you did not confirm the new position of {name}")
    say(f"{name} continues from {position} at its next start; start it with `sluice up`")
    return position


def _saved(ledger: Ledger) -> dict[str, Any]:
    cursor = ledger.cursor.to_json() if ledger.cursor else None
    waiting = [{"batch_id": batch.batch_id, "end": str(batch.end), "rows": batch.rows} for batch in ledger.outstanding]
    return {"cursor": cursor, "epoch": ledger.epoch, "server_uuid": ledger.server_uuid, "outstanding": waiting}
