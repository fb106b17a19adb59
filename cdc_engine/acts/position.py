"""Sets the position at which a destination continues, for `sluice position set`.

A new epoch begins if the file names and offsets of the source can no longer be compared with those that the engine has read. Without a new
epoch, a new change could get a lower order key than a change that was merged already. The merge would then skip the new change. A ledger
that replaces a lost ledger begins with an epoch above all epochs in the lake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.acts.stopped_destination import stopped_destination
from sluice.cdc_engine.destination_files.own_folder import forget_folder
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.resume_requests import begin_done
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.store.files.forget import forget_events
from sluice.cdc_engine.store.prepared import forget_prepared


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetPosition:
    """The callbacks of `set_position`.

    - `confirm(question)`: asks the operator. If it returns False, `set_position` changes nothing.
    - `query_source`: queries the source and returns its facts. `find`: returns the requested position in the source's binlog.
    - `reachable`: returns the source's facts, completed with the binlog files that only an archive still has.
    - `forget_history(token)`: removes the schema history, because the stored schemas are those at the old position. `token` is the token of
      the lease.
    - `lake_epoch`: returns the highest epoch of the destination's lake tables, or 0 if the lake has no tables of the destination.
      `take_over`: makes the ledger with the given id the owner of these tables.
    """

    directory: Path
    find: Callable[[ServerFacts], StartChoice]
    query_source: Callable[[], ServerFacts]
    confirm: Callable[[str], bool]
    forget_history: Callable[[int], None]
    lake_epoch: Callable[[], int]
    take_over: Callable[[str], None]
    reachable: Callable[[ServerFacts], ServerFacts] = lambda facts: facts


def set_position(act: SetPosition) -> Position | None:
    """Sets the position at which a destination continues: checks it with the source, asks the operator, and writes the ledger. Returns the
    position, or None if the operator refused.

    Raises LeaseLostError while an engine or a run is active, and PositionLostError if the source does not have the position.
    """
    with stopped_destination(act.directory) as stopped:
        meta = stopped.meta
        lake_epoch = act.lake_epoch() if meta.is_new else 0
        ledger = above(meta.ledger, lake_epoch)
        facts = act.query_source()
        choice = act.find(facts)
        position, by_gtid = choose(ledger, choice, facts, act.reachable), bool(choice.gtid_set)
        if not act.confirm(question(act.directory.name, ledger, position, by_gtid=by_gtid, takes_over=lake_epoch > 0)):
            return None
        steps: list[Callable[[], object]] = []
        if not read_up_to(ledger, choice, position):
            # Restarts open snapshots, and so drops their buffered changes, before the cursor moves. In the other order, a crash could leave
            # a snapshot whose buffered changes lack the changes between the old and the new position.
            steps.append(lambda: forget_buffered(act.directory, position))
            # Removes prepared transactions before the cursor moves. After a crash between these two steps, the destination stops at the
            # commit of such a transaction, or reads the transaction from the source again. No row becomes wrong.
            steps.append(lambda: forget_prepared(act.directory))
            steps.append(lambda: act.forget_history(stopped.lease.token))
        # Withdraws an operator's request to start at the source's current position, because the engine would execute it as soon as the
        # position is lost again, perhaps much later.
        steps.append(lambda: begin_done(act.directory))
        # Also removes stored events before the cursor moves, because these events may lack rows that the operator wants Sluice to read
        # again.
        steps.append(lambda: forget_events(act.directory))
        if lake_epoch:
            # Takes the tables over before the ledger is stored. After a crash between these two steps, the owner of the tables is a ledger
            # that does not exist, and the next attempt takes them over.
            steps.append(lambda: act.take_over(ledger.ledger_id))
        for step in steps:
            # Checks the lease before each step, because another engine may have acquired it while this process waited for the operator's
            # answer.
            stopped.lease.check()
            step()
        meta.update(lambda _: ledger.set_cursor(position))
        forget_folder(act.directory)
    return position


def forget_buffered(directory: Path, position: Position) -> None:
    """Restarts all open snapshots. Called before the cursor moves to `position`, if the stream may not have been read up to `position`.
    Without the restart, the snapshots would lack the changes between their last buffered change and `position`. Raises MetaError if a
    record cannot be written.
    """
    records = SnapshotRecords(directory)
    for record in records.all():
        if record.is_open:
            records.update(
                record.name,
                lambda now: now.again(
                    "`sluice position set` changed the position of the destination",
                    buffered_after=position.order_key,
                ),
            )


def above(ledger: Ledger, lake_epoch: int) -> Ledger:
    """Returns the ledger with an epoch above `lake_epoch`, so that all new changes have higher order keys than the changes in the lake."""
    return ledger if lake_epoch < ledger.epoch else ledger.begin_epoch(lake_epoch + 1)


def choose(
    ledger: Ledger,
    choice: StartChoice,
    facts: ServerFacts,
    reachable: Callable[[ServerFacts], ServerFacts] = lambda facts: facts,
) -> Position:
    """Returns the position that the operator requested (`choice`), with the epoch and the file under which the ledger stores it.
    `reachable` adds the files of an archive to the source's facts. Raises PositionLostError, with the reason and the safe options, if the
    source does not have the position.
    """
    start = decide_start(None, choice, facts)
    archived = reachable(facts) if isinstance(start, Lost) and start.purged else facts
    start = decide_start(None, choice, archived)
    if isinstance(start, Lost):
        raise PositionLostError(str(start))
    position = dataclasses.replace(start.position, epoch=next_epoch(ledger, facts, archived))
    if position.file:
        return position
    if not facts.logs:
        raise PositionLostError(
            "the source does not list its binlog files; enable log_bin on the source and grant REPLICATION "
            "CLIENT, then try again"
        )
    # With a GTID set, the server finds the first event itself. The position may therefore name any file up to the file with this event. The
    # oldest file is always such a file.
    return dataclasses.replace(position, file=facts.logs[0].file)


def next_epoch(ledger: Ledger, facts: ServerFacts, archived: ServerFacts | None = None) -> int:
    """Returns the epoch for the new position. `facts` are the source's facts, and `archived` are these facts with the files of an archive.

    The ledger's epoch continues if the ledger has no cursor. It also continues if the source is the server that the engine has read, and
    the cursor's file is in the source's binlog or in the archive. Otherwise, the next epoch begins.
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
    """Returns whether the new position is certainly in the part of the stream that was read already. In this case, the prepared
    transactions, the schema history and the buffered changes of open snapshots stay valid. Returns False if the operator gave a GTID set.
    """
    resume = ledger.resume_position
    # For a GTID set, the position names the source's oldest binlog file (`choose`). So the position's order key does not show where
    # the stream continues.
    if resume is None or choice.gtid_set:
        return False
    return position.epoch == resume.epoch and position.order_key <= resume.order_key


def question(name: str, ledger: Ledger, position: Position, *, by_gtid: bool = False, takes_over: bool = False) -> str:
    """Returns the question that `sluice position set` asks the operator: whether to set `position`, and with which consequences. `by_gtid`:
    whether the operator gave a GTID set. It is then unknown whether the position is before or after the cursor. `takes_over`: whether a new
    ledger takes over the tables in the lake.
    """
    if takes_over:
        return (
            f"{name} has no ledger, but the lake has tables of {name}. Take these tables over with a new "
            f"ledger that starts at {position}? Sluice never reads earlier changes that the tables lack. "
            f"Changes after {position} are delivered again, even if the tables have them already, and are "
            "then twice in tables without a key."
        )
    if ledger.cursor is None:
        return f"{name} has no position yet. Start at {position}? Earlier changes are not read."
    comparable = ledger.cursor.epoch == position.epoch and not by_gtid
    back = comparable and position.order_key < ledger.cursor.order_key
    meaning = (
        "Sluice reads the changes between the two positions again, and skips the changes that a table already has."
        if back
        else (
            "Sluice never reads the changes between the two positions: tables with such changes stay wrong until "
            "they are re-snapshotted."
        )
    )
    given_up = (
        " The batch in flight is discarded: tables without a key may get some of its changes twice."
        if ledger.outstanding
        else ""
    )
    return f"Move {name} from {ledger.cursor} to {position}? {meaning}{given_up}"
