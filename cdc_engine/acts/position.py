"""Where a destination is to go on: the rules of `sluice position set`, and the act itself.

A new epoch is taken when the source's file names or offsets can no longer be compared with those that were read, for then an old order
key could hide a new change; and by a ledger that takes the place of a lost one, above all that the lake has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from cdc_engine.acts.stopped_destination import stopped_destination
from cdc_engine.destination_files.own_folder import forget_folder
from cdc_engine.errors import PositionLostError
from cdc_engine.meta.ledger import Ledger
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from cdc_engine.position import Position
from cdc_engine.snapshot.records import SnapshotRecords
from cdc_engine.store.files.forget import forget_events
from cdc_engine.store.prepared import forget_prepared


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetPosition:
    """What `set_position` needs of the rest. `confirm`: asked with a sentence, False ends it with nothing changed.

    `ask`: what the source is and has; `find`: the exact place there of what was asked for. `reachable`: the same with what the source has
    purged and an archive has.
    `forget_history`: the schema history holds for a stream that is not read on.
    `lake_epoch`: the highest epoch of the destination's tables in the lake, 0 where there is none. `take_over`: makes them this ledger's.
    """

    directory: Path
    find: Callable[[ServerFacts], StartChoice]
    ask: Callable[[], ServerFacts]
    confirm: Callable[[str], bool]
    forget_history: Callable[[], None]
    lake_epoch: Callable[[], int]
    take_over: Callable[[str], None]
    reachable: Callable[[ServerFacts], ServerFacts] = lambda facts: facts


def set_position(act: SetPosition) -> Position | None:
    """Checks the place with the source, asks, and writes the ledger; None where nothing was changed.

    Raises LeaseLostError while an engine or a run is at work, PositionLostError when the source does not have the place.
    """
    with stopped_destination(act.directory) as meta:
        lake_epoch = act.lake_epoch() if meta.is_new else 0
        ledger = above(meta.ledger, lake_epoch)
        facts = act.ask()
        choice = act.find(facts)
        position, by_gtid = choose(ledger, choice, facts, act.reachable), bool(choice.gtid_set)
        if not act.confirm(question(act.directory.name, ledger, position, by_gtid=by_gtid, takes_over=lake_epoch > 0)):
            return None
        if not read_up_to(ledger, choice, position):
            # First: what was held has a gap from here on, so the rows are read anew.
            forget_held(act.directory, position)
            # Before the cursor moves: a crash in between costs a stop at their commit and a look at the source, no wrong row.
            forget_prepared(act.directory)
            act.forget_history()
        # Also before: what is stored may hold rows that were left out, and somebody wants them read again.
        forget_events(act.directory)
        if lake_epoch:
            # Before the ledger is kept: a crash in between leaves tables of nobody, which the next try takes.
            act.take_over(ledger.ledger_id)
        meta.update(lambda _: ledger.set_cursor(position))
        forget_folder(act.directory)
    return position


def forget_held(directory: Path, position: Position) -> None:
    """Tables that are being read: what lies between their held changes and the position is not known. Raises MetaError."""
    records = SnapshotRecords(directory)
    for record in records.all():
        if record.is_open:
            records.update(
                record.name,
                lambda now: now.again("the position was set elsewhere", held_after=position.order_key),
            )


def above(ledger: Ledger, lake_epoch: int) -> Ledger:
    """The ledger with an epoch above those of the lake, whose keys its stream's must be above."""
    return ledger if lake_epoch < ledger.epoch else ledger.begin_epoch(lake_epoch + 1)


def choose(
    ledger: Ledger,
    choice: StartChoice,
    facts: ServerFacts,
    reachable: Callable[[ServerFacts], ServerFacts] = lambda facts: facts,
) -> Position:
    """The position asked for, as the ledger keeps it. Raises PositionLostError with the reason and the safe options."""
    start = decide_start(None, choice, facts)
    archived = reachable(facts) if isinstance(start, Lost) and start.purged else facts
    start = decide_start(None, choice, archived)
    if isinstance(start, Lost):
        raise PositionLostError(str(start))
    position = dataclasses.replace(start.position, epoch=next_epoch(ledger, facts, archived))
    if position.file:
        return position
    if not facts.logs:
        raise PositionLostError("the source does not list its binlog files; grant REPLICATION CLIENT, then try again")
    # The server finds a GTID set's place itself; the oldest file there is a place that no change after the set lies before.
    return dataclasses.replace(position, file=facts.logs[0].file)


def next_epoch(ledger: Ledger, facts: ServerFacts, archived: ServerFacts | None = None) -> int:
    """The ledger's epoch, or the next one where the cursor proves nothing on this server: another server, a reset, a purge.

    `archived`: with what an archive has of the server's: a cursor in that goes on there, in its epoch.
    """
    if ledger.cursor is None:
        return ledger.epoch
    same_server = ledger.server_uuid in {"", facts.server_uuid}
    start = decide_start(ledger.cursor, StartChoice(), facts, Epochs(highest=ledger.epoch))
    if same_server and not isinstance(start, Lost):
        return start.position.epoch
    goes_on = isinstance(start, Lost) and start.purged and ledger.cursor.epoch == ledger.epoch
    if same_server and goes_on and ledger.cursor.file in {log.file for log in (archived or facts).logs}:
        return ledger.epoch
    return ledger.begin_epoch(ledger.epoch + 1).epoch


def read_up_to(ledger: Ledger, choice: StartChoice, position: Position) -> bool:
    """Whether the stream was read without a gap up to the position: then XA transactions recorded before it are still undecided there."""
    resume = ledger.resume_position
    # A set of transactions is no place in a file: it may leave some out.
    if resume is None or choice.gtid_set:
        return False
    return position.epoch == resume.epoch and position.order_key <= resume.order_key


def question(name: str, ledger: Ledger, position: Position, *, by_gtid: bool = False, takes_over: bool = False) -> str:
    """What the operator is asked, with what it will mean. `by_gtid`: a set of transactions was named, which is no place in a file."""
    if takes_over:
        return (
            f"{name} has no ledger, and the lake has tables of it. Take them over with a new ledger that starts at {position}? What "
            "changed before that place and is not in them is never read; changes after it that they have already come once more, in tables "
            "without a key twice."
        )
    if ledger.cursor is None:
        return f"{name} has no position yet. Start at {position}? Rows that changed before are not taken over."
    comparable = ledger.cursor.epoch == position.epoch and not by_gtid
    back = comparable and position.order_key < ledger.cursor.order_key
    meaning = (
        "Changes are read again; what a table has already is skipped."
        if back
        else "Changes between the two are never read: tables that had some stay wrong until their rows are taken anew."
    )
    given_up = (
        " The batch that waits is given up: tables without a key may get some of it twice."
        if ledger.outstanding
        else ""
    )
    return f"Move {name} from {ledger.cursor} to {position}? {meaning}{given_up}"
