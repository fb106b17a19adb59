"""Checks whether a server's binlog files are those to which a cursor belongs, by the server's identity and the file names. Pure; used by
`start_position`.

After RESET with gtid_purged set again, on a server rebuilt with its old uuid, or after a restored backup, file names start again, and so
do offsets. GTIDs may still prove that nothing is missed. They do not if the server itself used numbers again that were read before: those
are other transactions of the same names."""

from __future__ import annotations

import datetime as dt

from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.position import Position, file_number


def renumbered(cursor: Position, facts: ServerFacts) -> str:
    """Returns a sentence why the cursor's file is not the server's file of that name; an empty text if nothing shows a difference."""
    if names_restarted(cursor.file, facts):
        return f"{cursor.file} comes after the server's last binlog file {facts.file}: its binlog was reset"
    created = facts.created.get(cursor.file, 0)
    if not created or not cursor.file_created or created == cursor.file_created:
        return ""
    return (
        f"{cursor.file} was created at {_utc(created)}, the one of that name that was read at {_utc(cursor.file_created)}: the server's "
        "binlog was reset, or the server rebuilt or restored"
    )


def cut_off(cursor: Position, facts: ServerFacts) -> str:
    """Returns why the server no longer has everything that was read of the cursor's file; otherwise an empty text."""
    size = next((log.size_bytes for log in facts.logs if log.file == cursor.file), cursor.offset)
    if cursor.offset <= size:
        return ""
    return (
        f"{cursor.file} was read up to {cursor.offset}, and ends at {size} now: the server lost what it had sent (a crash without "
        "sync_binlog=1, a restored backup) and may have used its GTIDs again"
    )


def refilled(
    cursor: Position, taken: GtidSet | MariadbPosition, purged: GtidSet | MariadbPosition, facts: ServerFacts
) -> str:
    """Returns why the server's files do not continue the cursor's purged file; otherwise an empty text. Everything that was read must
    precede the first of them.

    Not detected if other transactions of the same names fill the purged files exactly up to the read position.
    """
    first = facts.logs[0].file if facts.logs else ""
    unknown = facts.mariadb and not facts.purged
    if unknown or not comes_before(cursor.file, first) or purged.contains(taken):  # type: ignore[arg-type]
        return ""
    return (
        f"{cursor.file}, which was read, no longer exists, and the first file that exists, {first}, begins after {purged or 'no GTIDs'}: "
        f"so {taken}, which was read, was not written before it. The server was reset or restored and has used these GTIDs again"
    )


def written_again(taken: GtidSet | MariadbPosition, purged: GtidSet | MariadbPosition, server_uuid: str) -> str:
    """Returns what was read before and is now in files that were started again, under the server's own name; empty if GTIDs prove that the
    stream continues.

    What was executed before the first of the new files (`purged`) was not written again. MariaDB names its servers by number, so
    everything counts.
    """
    if isinstance(taken, MariadbPosition) or isinstance(purged, MariadbPosition):
        return "" if purged.contains(taken) else str(taken)  # type: ignore[arg-type]
    own = GtidSet({source: runs for source, runs in taken.runs.items() if source.partition(":")[0] == server_uuid})
    return str(own.subtract(purged))


def names_restarted(file: str, facts: ServerFacts) -> bool:
    """Returns whether the server's file names have not reached this file yet."""
    if not file or not facts.file or base(file) != base(facts.file):
        return False
    try:
        return file_number(file) > file_number(facts.file)
    except BinlogFormatError:
        return False


def comes_before(file: str, other: str) -> bool:
    """Returns whether one file is before another, if their names can be compared."""
    if not file or not other or base(file) != base(other):
        return False
    try:
        return file_number(file) < file_number(other)
    except BinlogFormatError:
        return False


def base(file: str) -> str:
    """Returns the common part of the names of one sequence of files."""
    return file.rpartition(".")[0]


def _utc(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
