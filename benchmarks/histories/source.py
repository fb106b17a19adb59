"""Simulates the servers of a source: two MySQL servers with GTIDs, one of them a standby, or one server without GTIDs.

A server has rows, a binlog as files of real events, and an executed set. `Endpoint` is the address that a destination reads. After a
failover, another server answers at this address. `connection` answers production's queries and dumps from these objects.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from benchmarks.histories import binlog_bytes as binlog
from sluice.cdc_engine.gtid import GtidSet

Image = tuple[int, int]  # (id, number). The number is unique, and identifies the change that created the image.
LogEntry = tuple[str, int, int]  # (operation, id, number), as in the change log of a table without a key.
BASE = "binlog"


@dataclasses.dataclass(frozen=True)
class Change:
    """One pair of row images. `before` is None for an insert, and `after` for a delete. If both are None, it is a TRUNCATE of `table`."""

    table: str
    before: Image | None = None
    after: Image | None = None

    @property
    def truncates(self) -> bool:
        return self.before is None and self.after is None


@dataclasses.dataclass(frozen=True)
class Transaction:
    """A transaction. `gtid` is (server uuid, number), or None if the server has no GTIDs."""

    gtid: tuple[str, int] | None
    time: int
    changes: tuple[Change, ...]


@dataclasses.dataclass(frozen=True)
class Group:
    """The events of one transaction in a file, from the offset `begin` to `end`."""

    begin: int
    end: int
    gtid: tuple[str, int] | None
    events: tuple[bytes, ...]


@dataclasses.dataclass
class BinlogFile:
    """A binlog file. `head` are the events with which it begins. `tail` is the event that ends it. The last file has no `tail`."""

    number: int
    created: int
    previous: GtidSet
    head: list[bytes]
    begin: int
    end: int
    groups: list[Group] = dataclasses.field(default_factory=list)
    tail: list[bytes] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{BASE}.{self.number:06d}"


@dataclasses.dataclass
class Rows:
    """The rows of a server's two tables, with and without a key. `log` has every change of the table without a key."""

    keyed: dict[int, int] = dataclasses.field(default_factory=dict)
    keyless: dict[int, int] = dataclasses.field(default_factory=dict)
    log: list[LogEntry] = dataclasses.field(default_factory=list)

    def copy(self) -> Rows:
        return Rows(dict(self.keyed), dict(self.keyless), list(self.log))

    def fit(self, transaction: Transaction) -> bool:
        """Returns whether a transaction of another server can be applied to these rows."""
        trial = self.copy()
        for change in transaction.changes:
            rows = trial.keyed if change.table == binlog.KEYED else trial.keyless
            moved_in = change.after is not None and (change.before is None or change.before[0] != change.after[0])
            if change.before is not None and rows.get(change.before[0]) != change.before[1]:
                return False
            if moved_in and change.after is not None and change.after[0] in rows:
                return False
            trial.apply(change)
        return True

    def apply(self, change: Change) -> None:
        rows = self.keyed if change.table == binlog.KEYED else self.keyless
        if change.truncates:
            rows.clear()
        if change.before is not None:
            del rows[change.before[0]]
        if change.after is not None:
            rows[change.after[0]] = change.after[1]
        if change.table == binlog.KEYLESS:
            self.log += log_entries(change)


def log_entries(change: Change) -> list[LogEntry]:
    before, after = change.before, change.after
    if before is not None and after is not None:
        return [("update_preimage", *before), ("update_postimage", *after)]
    return [("insert", *after)] if after is not None else [("delete", *before)] if before is not None else []


@dataclasses.dataclass(frozen=True)
class Backup:
    rows: Rows
    executed: GtidSet


class Reader(Protocol):
    """A client that reads a dump. `reading` is the file that the client is reading."""

    @property
    def reading(self) -> BinlogFile | None: ...


class Server:
    """A simulated MySQL server. Without GTIDs, `executed` and `purged` are always empty. `now` returns the time in seconds, for files and
    commits.
    """

    def __init__(self, name: str, *, gtids: bool, now: Callable[[], int]) -> None:
        self.name, self.gtids, self._now = name, gtids, now
        self.uuid = server_uuid(name, 0)
        self.server_id = 10 + ord(name)
        self.rows = Rows()
        self.executed = self.purged = GtidSet()
        self.applied: list[Transaction] = []
        self.files: list[BinlogFile] = []
        self.readers: list[Reader] = []
        self.backup: Backup | None = None
        # The transactions before a RESET. After the RESET, other transactions can get their GTIDs.
        self.before_reset: list[Transaction] = []
        self.connects_since_reset = 0
        self.incarnation = 0
        self._open_file(1)

    # ── operations of clients ──

    def commit(self, changes: Sequence[Change]) -> None:
        number = max((last for _, last in self.executed.runs.get(self.uuid, ())), default=0) + 1
        self.apply(Transaction((self.uuid, number) if self.gtids else None, self._now(), tuple(changes)))

    def apply(self, transaction: Transaction) -> None:
        """Executes a transaction of a client, or one that is replicated from another server, and writes it to the binlog."""
        for change in transaction.changes:
            self.rows.apply(change)
        self.applied.append(transaction)
        file = self.files[-1]
        events = _events(transaction, file.end)
        end = file.end + sum(len(each) for each in events)
        file.groups.append(Group(file.end, end, transaction.gtid, tuple(events)))
        file.end = end
        if transaction.gtid is not None:
            server, number = transaction.gtid
            self.executed = self.executed.add(server, number, number)

    # ── operations of operators ──

    def flush(self) -> None:
        """Executes FLUSH BINARY LOGS."""
        file = self.files[-1]
        tail = binlog.rotate_in_file(f"{BASE}.{file.number + 1:06d}", file.end)
        file.tail, file.end = [tail], file.end + len(tail)
        self._open_file(file.number + 1)

    def purge(self) -> None:
        """Executes PURGE BINARY LOGS up to the last file. If a dump reads an earlier file, purges only the files before the file that
        the dump reads.
        """
        used = [self.files.index(each.reading) for each in self.readers if each.reading in self.files]
        self.files = self.files[min([len(self.files) - 1, *used]) :]
        self.purged = self.files[0].previous

    def reset(self, *, keep_gtids: bool) -> None:
        """Executes RESET BINARY LOGS AND GTIDS. With `keep_gtids`, then sets gtid_purged to the set that was executed before the RESET."""
        self.executed = self.purged = self.executed if keep_gtids else GtidSet()
        self.before_reset += self.applied
        self.connects_since_reset = 0
        self.applied = []
        self._restart()

    def make_backup(self) -> None:
        self.backup = Backup(self.rows.copy(), self.executed)

    def restore(self, backup: Backup, *, new_uuid: bool) -> None:
        """Replaces the server's data by a backup. The server's binlog starts again."""
        self.incarnation += 1
        if new_uuid:
            self.uuid = server_uuid(self.name, self.incarnation)
        self.rows, self.applied = backup.rows.copy(), []
        self.executed = self.purged = backup.executed
        self._restart()

    def follow(self, other: Server) -> bool:
        """Executes the transactions of `other` that this server lacks. Returns False if replication breaks: this server has transactions or
        rows that `other` lacks, or `other` has purged transactions that this server needs.
        """
        if not other.executed.contains(self.executed) or other.purged.subtract(self.executed):
            return False
        missing = other.executed.subtract(self.executed)
        for transaction in list(other.applied) if missing else ():
            if transaction.gtid is not None and _holds(missing, transaction.gtid):
                if not self.rows.fit(transaction):
                    return False
                self.apply(transaction)
        return True

    def _restart(self) -> None:
        self.files = []
        self._open_file(1)

    def _open_file(self, number: int) -> None:
        created = self._now()
        head = [binlog.format_description(created, server_id=self.server_id)]
        at = binlog.MAGIC_BYTES + len(head[0])
        if self.gtids:
            head.append(binlog.previous_gtids(self.executed, at))
            at += len(head[1])
        self.files.append(BinlogFile(number, created, self.executed, head, at, at))


def server_uuid(name: str, incarnation: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}{incarnation}"))


def _holds(executed: GtidSet, gtid: tuple[str, int]) -> bool:
    server, number = gtid
    return any(first <= number <= last for first, last in executed.runs.get(server, ()))


def _events(transaction: Transaction, at: int) -> list[bytes]:
    events: list[bytes] = []
    offset = at

    def write(event: bytes) -> None:
        nonlocal offset
        events.append(event)
        offset += len(event)

    time = transaction.time
    server, number = transaction.gtid or ("", 0)
    write(binlog.gtid(server, number, offset, time))
    if transaction.changes and transaction.changes[0].truncates:
        write(binlog.query(f"TRUNCATE TABLE {transaction.changes[0].table}", offset, time))
        return events
    write(binlog.query("BEGIN", offset, time))
    for change in transaction.changes:
        write(binlog.table_map(change.table, offset, time))
        images = [image for image in (change.before, change.after) if image is not None]
        write(binlog.rows(_kind(change), change.table, images, offset, time))
    write(binlog.xid(offset, time))
    return events


def _kind(change: Change) -> int:
    if change.before is None:
        return binlog.WRITE
    return binlog.DELETE if change.after is None else binlog.UPDATE


@dataclasses.dataclass
class Endpoint:
    """The address of a source. `closed` increases when the connections to it are closed. `standby` is the server that can take over."""

    current: Server
    standby: Server | None = None
    closed: int = 0

    def fail_over(self, *, caught_up: bool) -> bool:
        """Makes the standby answer at this address. With `caught_up`, the standby first replicates all transactions of the current server.
        Otherwise it has only those that it replicated earlier.
        """
        if self.standby is None or (caught_up and not self.standby.follow(self.current)):
            return False
        self.current, self.standby = self.standby, self.current
        self.closed += 1
        return True

    def rebuild_standby(self, *, new_uuid: bool) -> bool:
        """Rebuilds the standby as a clone of the current server."""
        if self.standby is None:
            return False
        self.standby.restore(Backup(self.current.rows, self.current.executed), new_uuid=new_uuid)
        return True


Deed = Literal["put", "delete", "move", "log", "relog", "unlog", "truncate"]


def changes_of(server: Server, deeds: Sequence[tuple[Deed, int]], next_number: Callable[[], int]) -> list[Change]:
    """Returns the changes that the clients' `deeds` make. A deed that the rows do not allow makes no change. A TRUNCATE is always in a
    transaction of its own.
    """
    rows = server.rows.copy()
    found: list[Change] = []
    for deed, key in deeds:
        for change in _changes(rows, deed, key, next_number):
            if change.truncates and found:
                continue
            rows.apply(change)
            found.append(change)
            if change.truncates:
                return found
    return found


def _changes(rows: Rows, deed: Deed, key: int, next_number: Callable[[], int]) -> list[Change]:
    keyless = deed in ("log", "relog", "unlog")
    table, current = (binlog.KEYLESS, rows.keyless) if keyless else (binlog.KEYED, rows.keyed)
    before = (key, current[key]) if key in current else None
    match deed:
        case "truncate":
            return [Change(table)]
        case "put" | "log" | "relog":
            return [Change(table, before, (key, next_number()))]
        case "delete" | "unlog":
            return [Change(table, before, None)] if before else []
        case "move":
            other = key + 1
            if before is None or other in current:
                return []
            return [Change(table, before, (other, next_number()))]
