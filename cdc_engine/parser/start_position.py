"""Decides where a stream starts: at the saved cursor if there is one. Without a cursor, the stream starts at the configured file and
offset. Without a file, it starts after the configured GTID set. Without either, it starts at the latest position. Pure functions.

The parser calls this module at every connect, including after a lost connection. The stream never skips events: if the server's facts do
not prove that the stream continues without a gap, the result is `Lost` with the reason.

An epoch is one sequence of binlog files whose names can be compared. A stream begins a new epoch, above all epochs in the ledger, if the
server's file names have started again. A stream also begins a new epoch if the cursor is in an earlier epoch than the newest epoch in the
ledger, because the lake may have changes whose order keys are above the order keys of the cursor's epoch.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition, parse_executed
from sluice.cdc_engine.parser.renumbering import base, comes_before, ends_before, refilled, renumbered, written_again
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.position import Position

FIRST_EPOCH = 1
FIRST_OFFSET = 4
RESNAPSHOT = "re-snapshot the tables and start at the latest position"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartChoice:
    """Where a destination without a cursor starts, by the settings in conf/ or as the result of a search. If no field is set, the
    destination starts at the latest position.

    - `file`, `offset`: the start in this file. `executed` is the executed set at this position, or empty if unknown.
    - `gtid_set`: the stream starts after the transactions of this set. Ignored if `file` is set.
    """

    file: str = ""
    offset: int = FIRST_OFFSET
    gtid_set: str = ""
    executed: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DumpStart:
    """Where a dump starts.

    - `position`: the position from which events are sent. Its `file` is empty if the server finds the position by GTID and sends the name
      of the file.
    - `by_gtid`: whether to request the dump by GTID set instead of by file and offset.
    - `executed_known`: whether `position.gtid_set` is the whole executed set at the position.
    - `read_twice_seconds`: if the position was found by commit time, how many seconds of changes are read twice. 0 for an exact position.
    """

    position: Position
    by_gtid: bool
    executed_known: bool
    read_twice_seconds: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """The epochs of a ledger. `highest` is the newest epoch. `unfinished` is a sentence that tells why no new epoch may begin now, or
    empty.
    """

    highest: int = FIRST_EPOCH
    unfinished: str = ""


NO_EPOCHS = Epochs()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost:
    """The decision that a stream cannot continue, because the server's facts do not prove that the stream would read every transaction.
    `reason` tells why, and `options` what an operator may safely do.

    - `not_yet`: the server may still receive the missing transactions.
    - `only_time`: the server is not the cursor's server, and the position on it can be found only by commit time (`positions.by_time`).
    - `purged`: the server has purged the next files. An archive may have these files (`stream.archived`).
    """

    reason: str
    not_yet: bool = False
    only_time: bool = False
    purged: bool = False
    options: tuple[str, ...] = (RESNAPSHOT,)

    def __str__(self) -> str:
        return f"{self.reason}. Safe options: {'; or '.join(self.options)}"


def decide_start(
    cursor: Position | None, choice: StartChoice, facts: ServerFacts, epochs: Epochs = NO_EPOCHS
) -> DumpStart | Lost:
    """Decides where a stream starts: after `cursor`, or as `choice` says if there is no cursor. Raises ConfigurationError if a GTID set
    cannot be parsed.
    """
    if cursor is not None:
        return _in_its_epoch(_from_cursor(cursor, facts), cursor, epochs)
    start = _from_choice(choice, facts)
    return start if isinstance(start, Lost) else _with_epoch(start, max(FIRST_EPOCH, epochs.highest))


def _from_choice(choice: StartChoice, facts: ServerFacts) -> DumpStart | Lost:
    if choice.file:
        return _from_file(choice, facts)
    if choice.gtid_set:
        return _from_gtid_set(choice.gtid_set, facts)
    return _latest(facts)


def _in_its_epoch(start: DumpStart | Lost, cursor: Position, epochs: Epochs) -> DumpStart | Lost:
    """Returns `start` in a new epoch, or `Lost` if no new epoch may begin now. Returns `start` unchanged if it is `Lost`, or if it is in
    the cursor's epoch and the ledger has no higher epoch.
    """
    if isinstance(start, Lost) or start.position.epoch == cursor.epoch >= epochs.highest:
        return start
    return in_new_epoch(start, cursor, epochs)


def in_new_epoch(start: DumpStart, cursor: Position, epochs: Epochs) -> DumpStart | Lost:
    """Returns the start in an epoch above all epochs of the ledger, or `Lost` if no new epoch may begin now."""
    if epochs.unfinished:
        return Lost(
            reason=epochs.unfinished, options=("connect to the server whose binlog the cursor is in", RESNAPSHOT)
        )
    return _with_epoch(start, max(cursor.epoch, epochs.highest) + 1)


def _with_epoch(start: DumpStart, epoch: int) -> DumpStart:
    return dataclasses.replace(start, position=dataclasses.replace(start.position, epoch=epoch))


def _from_cursor(cursor: Position, facts: ServerFacts) -> DumpStart | Lost:
    """Returns the start after a cursor, or `Lost` if the stream cannot continue without a gap. The start is in the cursor's epoch if the
    server's files continue the cursor's binlog. The start is in the next epoch if the server is another one, if its file numbers have
    started again, or if its file names now have another text before the number.
    """
    same_server = cursor.server_uuid in ("", facts.server_uuid)
    renumbering = renumbered(cursor, facts) if same_server else ""
    by_gtid = bool(cursor.gtid_set and facts.gtid_enabled)
    if renumbering and not by_gtid:
        return Lost(reason=renumbering)
    if not by_gtid:
        return _from_cursor_by_file(cursor, facts, same_server)
    gap = _gtid_gap(cursor.gtid_set, facts) or (_same_server_gap(cursor, facts, renumbering) if same_server else None)
    if gap is not None:
        archived = gap.purged and same_server and not renumbering
        return dataclasses.replace(gap, not_yet=gap.not_yet and not same_server, purged=archived)
    if same_server and not renumbering and (not cursor.file or base(cursor.file) == base(facts.file)):
        return DumpStart(position=cursor, by_gtid=True, executed_known=True)
    moved = dataclasses.replace(
        cursor, epoch=cursor.epoch + 1, file="", offset=FIRST_OFFSET, server_uuid=facts.server_uuid, file_created=0
    )
    return DumpStart(position=moved, by_gtid=True, executed_known=True)


def _from_cursor_by_file(cursor: Position, facts: ServerFacts, same_server: bool) -> DumpStart | Lost:
    if not same_server:
        return Lost(
            reason=f"the cursor {cursor} is in the binlog of the server {cursor.server_uuid}, and the address now "
            f"leads to the server {facts.server_uuid}. Sluice can find the position and the missing changes on the new server only if "
            f"both servers have GTIDs. The binlog of the new server ends at {facts.file}:{facts.offset}",
            options=(
                "connect to the first server again",
                (
                    "set `failover: by_time` in conf/, so that the stream continues by commit time and the tables to "
                    "which a change cannot be applied twice stop"
                ),
                RESNAPSHOT,
            ),
            only_time=True,
        )
    gap = file_gap(cursor.file, cursor.offset, facts)
    return gap or DumpStart(position=cursor, by_gtid=False, executed_known=bool(cursor.gtid_set))


def _from_file(choice: StartChoice, facts: ServerFacts) -> DumpStart | Lost:
    position = Position(
        epoch=FIRST_EPOCH,
        file=choice.file,
        offset=choice.offset,
        gtid_set=choice.executed,
        server_uuid=facts.server_uuid,
        file_created=facts.created.get(choice.file, 0),
    )
    gap = file_gap(choice.file, choice.offset, facts)
    return gap or DumpStart(position=position, by_gtid=False, executed_known=bool(choice.executed))


def _from_gtid_set(gtid_set: str, facts: ServerFacts) -> DumpStart | Lost:
    if not facts.gtid_enabled:
        return Lost(
            reason="`start` is a GTID set, but gtid_mode of the server is not ON",
            options=("set a file and offset in `start`", "switch gtid_mode on"),
        )
    gap = _gtid_gap(gtid_set, facts)
    if gap is not None:
        return gap
    text = str(_parsed(gtid_set, facts))
    position = Position(epoch=FIRST_EPOCH, file="", offset=FIRST_OFFSET, gtid_set=text, server_uuid=facts.server_uuid)
    return DumpStart(position=position, by_gtid=True, executed_known=True)


def _latest(facts: ServerFacts) -> DumpStart | Lost:
    """Returns the start at the latest position. On MySQL with GTIDs, the dump is requested by GTID set, because the file may already have a
    transaction that is not in the executed set yet. A dump by file and offset would leave out this transaction.
    """
    if not facts.file:
        return Lost(
            reason="the server did not report the end of its binlog",
            options=("enable log_bin on the server and grant REPLICATION CLIENT",),
        )
    position = Position(
        epoch=FIRST_EPOCH,
        file=facts.file,
        offset=facts.offset,
        gtid_set=facts.executed if facts.gtid_enabled else "",
        server_uuid=facts.server_uuid,
        file_created=facts.created.get(facts.file, 0),
    )
    by_gtid = facts.gtid_enabled and (bool(facts.executed) or not facts.mariadb)
    return DumpStart(position=position, by_gtid=by_gtid, executed_known=facts.gtid_enabled)


def file_gap(file: str, offset: int, facts: ServerFacts) -> Lost | None:
    """Returns `Lost` if a stream cannot start at this offset of the file, otherwise None."""
    sizes = {log.file: log.size_bytes for log in facts.logs}
    if file in sizes:
        if offset <= sizes[file]:
            return None
        return Lost(
            reason=(
                f"{file}:{offset} is after the end of the file ({sizes[file]} bytes): the server's binlog was reset, it "
                "lost its end in a crash, or a requested offset is wrong"
            )
        )
    first = facts.logs[0].file if facts.logs else "none"
    return Lost(
        purged=comes_before(file, first),
        reason=f"{file} is not among the server's binlog files (the first is {first}): the file was purged before it was read, the "
        "binlog was reset, or a requested file name is wrong",
    )


def _gtid_gap(gtid_set: str, facts: ServerFacts) -> Lost | None:
    """Returns `Lost` if the server cannot continue after a GTID set, because the server has purged later transactions or has not executed
    all transactions of the set. Otherwise returns None.
    """
    taken = _parsed(gtid_set, facts)
    executed = _parsed(facts.executed, facts)
    if isinstance(taken, MariadbPosition) or isinstance(executed, MariadbPosition):
        ahead = "" if executed.contains(taken) else str(taken)  # type: ignore[arg-type]
        gone = _parsed(facts.purged, facts)
        purged = "" if taken.contains(gone) else str(gone)  # type: ignore[arg-type]
    else:
        ahead = str(taken.subtract(executed))
        purged = str(GtidSet.parse(facts.purged).subtract(taken))
    if purged:
        return Lost(
            reason=f"the server purged the binlog with the transactions {purged}, which the engine has not read",
            purged=True,
        )
    if not ahead:
        return None
    return Lost(
        reason=(
            f"the server has not executed the transactions {ahead}, which the engine has read or the requested GTID set "
            "contains: the server was reset or restored, or is a replica that is behind"
        ),
        options=(
            "connect to a server that has executed these transactions",
            "wait until the replica has caught up",
            RESNAPSHOT,
        ),
        not_yet=True,
    )


def _same_server_gap(cursor: Position, facts: ServerFacts, renumbering: str) -> Lost | None:
    """Called if the stream continues by GTID on the cursor's own server. Returns `Lost` if this server may have used GTIDs again that the
    engine has already read, otherwise None. `renumbering` is a sentence that tells why the server's files are not the files that were read,
    or "" if they are these files.
    """
    taken, purged = _parsed(cursor.gtid_set, facts), _parsed(facts.purged, facts)
    if not renumbering:
        why = ends_before(cursor, facts) or refilled(cursor, taken, purged, facts)
        return Lost(reason=why) if why else None
    again = written_again(taken, purged, facts.server_uuid)
    if not again:
        return None
    return Lost(
        reason=(
            f"{renumbering}; the server wrote transactions with the GTIDs {again}, which the engine has read "
            "already: different transactions may now have these GTIDs"
        )
    )


def _parsed(gtid_set: str, facts: ServerFacts) -> GtidSet | MariadbPosition:
    try:
        return parse_executed(gtid_set, mariadb=facts.mariadb)
    except ValueError as error:
        kind = "MariaDB" if facts.mariadb else "MySQL"
        raise ConfigurationError(f"the GTID set is not valid for a {kind} server: {error}") from error
