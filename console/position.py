"""Showing and setting where a destination stands; `sluice position`. Sets only while it holds the lease, so no engine runs beside it.

The rule of a new epoch is pure (`next_epoch`): it grows when the source's file names or offsets can no longer be compared with those that
were read, for then an old order key could hide a new change.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from rich.table import Table

from cdc_engine.config import SluiceConfig
from cdc_engine.destination_files import lease_holder, read_ledger, run_lock_held
from cdc_engine.errors import ConfigurationError, LeaseLostError, PositionLostError
from cdc_engine.ha.lease import Lease
from cdc_engine.meta.file_meta import FileMeta
from cdc_engine.meta.ledger import Ledger
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from cdc_engine.position import Position
from cdc_engine.store.prepared import forget_prepared
from console.sources import ask_source, require_destination
from console.toolchain.errors import SetupError

_PLACE = re.compile(r"(?P<file>[^:/\\\s]+\.\d+):(?P<offset>\d+)")


@dataclasses.dataclass(frozen=True)
class Request:
    """What the operator asked for, as the choice the engine's own start decision takes; an empty choice is the latest place."""

    choice: StartChoice

    @classmethod
    def parse(cls, place: str, gtid: str, *, latest: bool) -> Request:
        """Raises ConfigurationError unless exactly one of the three was given, and well-formed."""
        if [bool(place), bool(gtid), latest].count(True) != 1:
            raise ConfigurationError("say where to: one of FILE:OFFSET, --gtid SET or --latest")
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


def set_position(
    config: SluiceConfig, name: str, request: Request, *, confirm: Callable[[str], bool], say: Callable[[str], None]
) -> Position:
    """Checks the place with the source, asks, and writes the ledger.

    Raises LeaseLostError while an engine or a run is at work, PositionLostError when the source does not have the place.
    """
    destination = require_destination(config, name)
    directory = config.destination_dir(name)
    lease = Lease(directory)
    if not lease.try_acquire():
        holder = lease_holder(directory)
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        raise LeaseLostError(f"the engine of {name} runs ({who}); stop it with `sluice down`, then set its position")
    try:
        if run_lock_held(directory):
            raise LeaseLostError(
                f"a run still merges a batch of {name}; wait until it has ended, then set its position"
            )
        meta = FileMeta(directory, fence=lease.check)
        position = choose(meta.ledger, request, ask_source(destination).facts)
        if not confirm(question(name, meta.ledger, position)):
            raise SetupError("nothing was changed")
        if not read_up_to(meta.ledger, request, position):
            # Before the cursor moves: a crash in between costs a stop at their commit, no wrong row.
            forget_prepared(directory)
        meta.update(lambda ledger: ledger.set_cursor(position))
    finally:
        lease.release()
    say(f"{name} goes on from {position}; `sluice up` starts it")
    return position


def choose(ledger: Ledger, request: Request, facts: ServerFacts) -> Position:
    """The position asked for, as the ledger keeps it. Pure. Raises PositionLostError with the reason and the safe options."""
    start = decide_start(None, request.choice, facts)
    if isinstance(start, Lost):
        raise PositionLostError(str(start))
    position = dataclasses.replace(start.position, epoch=next_epoch(ledger, facts))
    if position.file:
        return position
    if not facts.logs:
        raise PositionLostError("the source does not list its binlog files; grant REPLICATION CLIENT, then try again")
    # The server finds a GTID set's place itself; the oldest file there is a place that no change after the set lies before.
    return dataclasses.replace(position, file=facts.logs[0].file)


def next_epoch(ledger: Ledger, facts: ServerFacts) -> int:
    """The ledger's epoch, or the next one where the cursor proves nothing on this server: another server, a reset, a purge."""
    if ledger.cursor is None:
        return ledger.epoch
    same_server = ledger.server_uuid in {"", facts.server_uuid}
    start = decide_start(ledger.cursor, StartChoice(), facts, Epochs(highest=ledger.epoch))
    if same_server and not isinstance(start, Lost):
        return start.position.epoch
    return ledger.begin_epoch(ledger.epoch + 1).epoch


def read_up_to(ledger: Ledger, request: Request, position: Position) -> bool:
    """Whether the stream was read without a gap up to the position: then XA transactions recorded before it are still undecided there."""
    resume = ledger.resume_position
    # A set of transactions is no place in a file: it may leave some out.
    if resume is None or request.choice.gtid_set:
        return False
    return position.epoch == resume.epoch and position.order_key <= resume.order_key


def question(name: str, ledger: Ledger, position: Position) -> str:
    """What the operator is asked, with what it will mean."""
    if ledger.cursor is None:
        return f"{name} has no position yet. Start at {position}? Rows that changed before are not taken over."
    comparable = ledger.cursor.epoch == position.epoch and not position.gtid_set
    back = comparable and position.order_key < ledger.cursor.order_key
    meaning = (
        "Changes are read again; what a table has already is skipped."
        if back
        else "Changes between the two are never read: tables that had some stay wrong until their rows are taken anew."
    )
    return f"Move {name} from {ledger.cursor} to {position}? {meaning}"


def _saved(ledger: Ledger) -> dict[str, Any]:
    cursor = ledger.cursor.to_json() if ledger.cursor else None
    waiting = [{"batch_id": batch.batch_id, "end": str(batch.end), "rows": batch.rows} for batch in ledger.outstanding]
    return {"cursor": cursor, "epoch": ledger.epoch, "server_uuid": ledger.server_uuid, "outstanding": waiting}
