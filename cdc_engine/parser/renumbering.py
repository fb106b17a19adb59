"""Checks whether a cursor belongs to the binlog files that a server has now, by the server's identity, the file names and GTIDs. Pure
functions.

File names and offsets start again after RESET MASTER, if a server was rebuilt with its old uuid, or if a backup was restored. The cursor's
file and offset then prove nothing. Executed GTIDs may still prove that no transaction is missing, so that the stream can continue. GTIDs
prove nothing if the server has used one again: the stream has read one transaction with this GTID, and the server now has another one.
"""

from __future__ import annotations

import datetime as dt

from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.position import Position, file_number


def renumbered(cursor: Position, facts: ServerFacts) -> str:
    """Returns a sentence that tells why the server no longer has the cursor's file: the number of the cursor's file is higher than the
    number of the server's last file, or the server's file of the same name has another creation time. Otherwise returns "".
    """
    if names_restarted(cursor.file, facts):
        return f"{cursor.file} comes after the server's last binlog file {facts.file}: the server's binlog was reset"
    created = facts.created.get(cursor.file, 0)
    if not created or not cursor.file_created or created == cursor.file_created:
        return ""
    return (
        f"{cursor.file} was created at {_utc(created)}, and the file of this name that the engine read was "
        f"created at {_utc(cursor.file_created)}: the server's binlog was reset, or the server was "
        "rebuilt or restored"
    )


def ends_before(cursor: Position, facts: ServerFacts) -> str:
    """Returns a sentence if the server's copy of the cursor's file now ends before the cursor, otherwise ""."""
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
    """Returns a sentence that says why the stream cannot continue: the cursor's file no longer exists, and the server's files do not
    continue the cursor's binlog. Otherwise returns "". The files continue the cursor's binlog if `purged` contains all transactions that
    were read (`taken`). If a MariaDB server did not report its purged transactions, also returns "".

    One case is not detected: the server used the same GTIDs again for other transactions, and has purged exactly the transactions with the
    GTIDs up to the cursor.
    """
    first = facts.logs[0].file if facts.logs else ""
    unknown = facts.mariadb and not facts.purged
    if unknown or not comes_before(cursor.file, first) or purged.contains(taken):  # type: ignore[arg-type]
        return ""
    return (
        f"the engine read the transactions {taken} up to {cursor.file}, and the server no longer has this file. The "
        f"server's first file {first} begins after {purged or 'no GTIDs'}, so it does not continue these transactions: "
        "the server was reset or restored, and has used these GTIDs again"
    )


def written_again(taken: GtidSet | MariadbPosition, purged: GtidSet | MariadbPosition, server_uuid: str) -> str:
    """Returns the GTIDs of read transactions (`taken`) that the server may have given to other transactions since the names of its binlog
    files started again. Returns "" if there are no such GTIDs, so that the stream continues.

    Transactions in `purged` are older than the server's files, so their GTIDs were not used again. On MySQL, only the GTIDs with the uuid
    `server_uuid` are compared with `purged`. MariaDB identifies servers only by a number, so on MariaDB the GTIDs of all servers are
    compared.
    """
    if isinstance(taken, MariadbPosition) or isinstance(purged, MariadbPosition):
        return "" if purged.contains(taken) else str(taken)  # type: ignore[arg-type]
    own = GtidSet({source: runs for source, runs in taken.runs.items() if source.partition(":")[0] == server_uuid})
    return str(own.subtract(purged))


def names_restarted(file: str, facts: ServerFacts) -> bool:
    """Returns whether the server has started its file numbers again: whether the number of `file` is higher than the number of the server's
    current file. Returns False if the two names differ before the number.
    """
    if not file or not facts.file or base(file) != base(facts.file):
        return False
    try:
        return file_number(file) > file_number(facts.file)
    except BinlogFormatError:
        return False


def comes_before(file: str, other: str) -> bool:
    """Returns whether `file` precedes `other` in one sequence of binlog files. Returns False if the two names do not belong to one
    sequence.
    """
    if not file or not other or base(file) != base(other):
        return False
    try:
        return file_number(file) < file_number(other)
    except BinlogFormatError:
        return False


def base(file: str) -> str:
    """Returns a binlog file's name without its number. All files of one sequence share this part."""
    return file.rpartition(".")[0]


def _utc(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
