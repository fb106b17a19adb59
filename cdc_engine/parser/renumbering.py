"""Checks whether a cursor belongs to a server's current binlog files, by the server's identity and the file names. Pure; used by
`start_position`.

File names and offsets start again after RESET with gtid_purged set again, on a server that was rebuilt with its old uuid, or after a
restored backup. GTIDs may still prove that no transaction is missing. They prove nothing if the server itself used GTIDs again that were
read before: these are other transactions with the same names.
"""

from __future__ import annotations

import datetime as dt

from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.position import Position, file_number


def renumbered(cursor: Position, facts: ServerFacts) -> str:
    """Returns a sentence that explains why the server's file of that name is not the cursor's file; empty if nothing shows a difference."""
    if names_restarted(cursor.file, facts):
        return f"{cursor.file} comes after the server's last binlog file {facts.file}: the server's binlog was reset"
    created = facts.created.get(cursor.file, 0)
    if not created or not cursor.file_created or created == cursor.file_created:
        return ""
    return (
        f"{cursor.file} was created at {_utc(created)}, and the file of this name that the engine read was "
        f"created at {_utc(cursor.file_created)}: the server's binlog was reset, or the server rebuilt or "
        "restored"
    )


def cut_off(cursor: Position, facts: ServerFacts) -> str:
    """Returns why the server no longer has all of the cursor's file that was read; empty if it has."""
    size = next((log.size_bytes for log in facts.logs if log.file == cursor.file), cursor.offset)
    if cursor.offset <= size:
        return ""
    return (
        f"the engine read {cursor.file} up to {cursor.offset}, and the file now ends at {size}: the server "
        "lost events that it had sent (a crash without sync_binlog=1, a restored backup) and may have used "
        "its GTIDs again"
    )


def refilled(
    cursor: Position, taken: GtidSet | MariadbPosition, purged: GtidSet | MariadbPosition, facts: ServerFacts
) -> str:
    """Returns why the server's files do not continue the cursor's purged file; empty if they do. All transactions that were read must
    precede the server's first file.

    Not detected: other transactions of the same names fill the purged files exactly up to the position that was read.
    """
    first = facts.logs[0].file if facts.logs else ""
    unknown = facts.mariadb and not facts.purged
    if unknown or not comes_before(cursor.file, first) or purged.contains(taken):  # type: ignore[arg-type]
        return ""
    return (
        f"{cursor.file}, which the engine read, no longer exists, and the first existing file {first} begins "
        f"after {purged or 'no GTIDs'}: so the transactions {taken}, which the engine read, are not from "
        "before that file. The server was reset or restored and has used these GTIDs again"
    )


def written_again(taken: GtidSet | MariadbPosition, purged: GtidSet | MariadbPosition, server_uuid: str) -> str:
    """Returns the transactions that were read before and that the server itself wrote again into new files; empty if GTIDs prove that the
    stream continues.

    Transactions that were executed before the first of the new files (`purged`) were not written again. MariaDB identifies servers by
    number only, so the transactions of all servers count.
    """
    if isinstance(taken, MariadbPosition) or isinstance(purged, MariadbPosition):
        return "" if purged.contains(taken) else str(taken)  # type: ignore[arg-type]
    own = GtidSet({source: runs for source, runs in taken.runs.items() if source.partition(":")[0] == server_uuid})
    return str(own.subtract(purged))


def names_restarted(file: str, facts: ServerFacts) -> bool:
    """Returns whether the file's number is above that of the server's current file."""
    if not file or not facts.file or base(file) != base(facts.file):
        return False
    try:
        return file_number(file) > file_number(facts.file)
    except BinlogFormatError:
        return False


def comes_before(file: str, other: str) -> bool:
    """Returns whether one file is before another; False if their names cannot be compared."""
    if not file or not other or base(file) != base(other):
        return False
    try:
        return file_number(file) < file_number(other)
    except BinlogFormatError:
        return False


def base(file: str) -> str:
    """Returns the part that the names of one sequence of files have in common."""
    return file.rpartition(".")[0]


def _utc(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
