"""Defines the values that the stages of the engine exchange. Stages import only this module and `ports` (the protocols), never each other.

`parser` reads bytes and makes a `Block`. `sink` removes rows that are not captured, and puts the block into the store. The store hands out
a `Batch` of `BlockSlice`s, which ends on a transaction boundary. `staging` decodes the batch into Parquet files, one per table and schema
version. `meta` keeps the `Ledger` of what was handed out and acked.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.batch_manifest.values import Alteration, Cascade
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState

Bytes = npt.NDArray[np.uint8]
Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Operation(enum.IntEnum):
    """The kind of a staged row image. Delta's change data feed has the same four kinds."""

    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4


class RowEventKind(enum.IntEnum):
    """What a row event does to rows: WRITE_ROWS, UPDATE_ROWS (or PARTIAL_UPDATE_ROWS) and DELETE_ROWS in the binlog."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table, as its row images have it.

    - `type_code`: MYSQL_TYPE_* as in the table map, except for ENUM and SET columns: MYSQL_TYPE_ENUM or _SET, where a table map has STRING.
    - `metadata`: the table map's metadata of the column as one integer (fraction digits, length, precision << 8 | scale, …).
    - `charset`: MySQL's name ("utf8mb4", …) for character, ENUM and SET columns, else empty. `labels`: the values of an ENUM or SET.
    - `mysql_type`: the declared type ("int unsigned") if the schema history knows it, otherwise a derived one.
    - `default`: a tuple with the value that a row gets if its INSERT omits the column, as the server prints it (bytes in hexadecimal).
      (None,) is NULL. () means that the value is unknown or not a constant.
    - `generated`: "virtual" or "stored" for a generated column, else empty. "unknown" if only a table map is known. In a system-versioned
      table: "row start", "row end", "hidden row start" or "hidden row end".
    """

    name: str
    type_code: int
    metadata: int = 0
    unsigned: bool = False
    charset: str = ""
    labels: tuple[str, ...] = ()
    nullable: bool = True
    mysql_type: str = ""
    default: tuple[str | None, ...] = ()
    generated: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableVersion:
    """A table with the schema that its row events have. `version` is a short digest; equal schemas have equal digests. `cascades` are the
    foreign keys by which a change of its rows also changes captured tables, directly or through other tables. `follows`: whether foreign
    keys change the table's rows when rows of other tables change. `watched`: the table is not captured, and is read only because of its
    `cascades`. `stopped`: consumers get the table's rows, but the lake does not. `unreadable`: why consumers do not get the table's rows.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    version: str = ""
    cascades: tuple[Cascade, ...] = ()
    watched: bool = False
    follows: bool = False
    stopped: bool = False
    unreadable: str = ""

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


class TableChangeKind(enum.Enum):
    """What a DDL statement did to a captured table. Covers only changes that concern the lake."""

    SCHEMA = "schema"  #: The table was created or has other columns, which the Delta table must get.
    TRUNCATE = "truncate"  #: All rows were removed.
    STOPPED = "stopped"  #: The table stops for the lake. `state` and `reason` say why.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableChange:
    """A change of a table by a DDL statement. `order_key` is the order key of the end of the statement.

    - `schema`: the table's schema after the statement. For STOPPED, the schema with which consumers read the table, or None.
    - `alterations`: for SCHEMA, the changes that the Delta table must get, in order, without the changes that a policy ignores.
    - `fills`: for SCHEMA, the values that added columns get in existing rows: (column, value as in Column.default). The binlog has no row
      events for these values. Added columns without a value here are NULL in existing rows.
    - `renamed_from`: for SCHEMA, the former name ("database.table") of a renamed table. The rows that the lake has under this name
      immediately before `order_key` become the rows of the table. Empty if the table keeps its own rows.
    """

    kind: TableChangeKind
    database: str
    table: str
    order_key: int
    time_us: int
    schema: TableVersion | None = None
    fills: tuple[tuple[str, str], ...] = ()
    alterations: tuple[Alteration, ...] = ()
    renamed_from: str = ""
    state: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatementSession:
    """What a query event says about the session of its statement. These values decide how the statement is parsed, and what it does to
    rows. A value that the event does not contain is empty, 0 or None.

    - `sql_mode`: the bits of sql_mode. `explicit_timestamps`: explicit_defaults_for_timestamp. `time_zone`: the session's time_zone.
    - `started_us`: the value of CURRENT_TIMESTAMP in µs since 1970. If `fraction` is False, the event states only whole seconds.
    - `client`, `connection`, `server`: charset of the statement's text, of its literals (collation_connection), and of a database that is
      created without a charset (collation_server).
    - `flavour`: "mysql" or "mariadb". The query event does not contain it: it is known from the binlog file's first event.
    - `thread_specific`: the statement depends on its session, for example on a temporary table that has the name of another table.
    """

    sql_mode: int = 0
    started_us: int = 0
    fraction: bool = False
    time_zone: str = ""
    explicit_timestamps: bool | None = None
    client: str = ""
    connection: str = ""
    server: str = ""
    flavour: str = ""
    thread_specific: bool = False


NO_SESSION = StatementSession()

# Facts about one transaction. `begin…` are of its first event (QUERY "BEGIN"), and `close…` of its last event (XID, or QUERY "COMMIT"):
# offset in the file, length in bytes, and seconds since 1970. `begin` is -1 if there is no first event (a statement without BEGIN, or the
# beginning of a file), and `xid` is -1 if a COMMIT ended the transaction. `thread` is the thread id of the session, and `server` the id of
# the server that first executed the transaction. `sequence` is the transaction's number in the file, and `committed` the number of the last
# transaction on which it depends. Both come from MySQL's GTID event, and are -1 if they are unknown.
FRAME_FIELDS = (
    *("begin", "begin_length", "begin_seconds", "thread"),
    *("close", "close_length", "close_seconds", "xid", "server"),
    *("committed", "sequence"),
)
FRAME = np.dtype([(name, np.int64) for name in FRAME_FIELDS])
Frames = npt.NDArray[np.void]  #: structured array of FRAME
NO_FRAMES: Frames = np.zeros(0, FRAME)
NO_GTID = (-1, 0)  #: (index of the source, number) of a transaction without GTID.
NO_QUERIES: Int64s = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggedStatement:
    """A statement that the binlog contains as text, such as DDL. `offset` and `length` (bytes) are of the event in the block's buffer."""

    text: str
    database: str
    offset: int
    length: int
    seconds: int  #: Since 1970.
    server: int
    session: StatementSession


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A buffer of whole binlog events, with parallel arrays that index it. Immutable. All events are in one binlog `file` of one `epoch`.

    Per row event (n):
    - `event_offset`, `event_length` (int64): the event in `buffer`, from its 19-byte header, without checksum.
    - `event_kind` (int8, RowEventKind), `event_table` (int32, index into `tables`), `event_time_us` (int64, commit time).
    - `event_version` (int8): layout of the rows header, 1 or 2. 3 is like 2, for an update whose JSON values may be differences.
    - `event_position` (int64): file offset of the event, of the compressed event that contains it, or of the XA COMMIT of its transaction.
    - `event_transaction_offset` (int64): the file offset that the order key of the event's rows contains. It is after the first event of
      the transaction and, if the rows follow a DDL statement in the transaction, after this statement. So the order key is above the keys
      of everything that ended before this offset, and below the keys of everything that follows. A second reading gives the same offset.

    Per transaction that ends in the block (t):
    - `transaction_events` (int64, ascending): number of row events in this block up to the transaction's end. `transaction_end` (int64):
      file offset after its last event.
    - `transaction_source` (int32): index into `gtid_sources`, or -1 without GTID. `transaction_number` (int64): gno or sequence number.
    - `transaction_time_us`: commit time. `transaction_frame`: the values of FRAME_FIELDS for the transaction.

    Row events after the last end belong to an open transaction, which continues in the next block. `open_frame` has the values of
    FRAME_FIELDS for the open transaction, or is empty if no transaction is open. `open_gtid` is the source and number of its GTID.

    Per rows query, which has the SQL text of a statement that changed rows (only if a consumer gets these texts):
    - `query_event` (int64, ascending): index of the statement's first row event.
    - `query_offset`, `query_length`, `query_position` (int64): as for row events.

    A DDL statement is a block of its own, so `changes` is only set in a block without row events. `statement` is the statement of such a
    block, even if it changes no captured table. `start_gtid_set` is the executed set before the first transaction, as text. `file_created`
    is when the file was created, in seconds since 1970, or 0.
    """

    epoch: int
    file: str
    server_uuid: str
    buffer: Bytes
    tables: Sequence[TableVersion]
    event_offset: Int64s
    event_length: Int64s
    event_kind: Int8s
    event_version: Int8s
    event_table: Int32s
    event_position: Int64s
    event_time_us: Int64s
    event_transaction_offset: Int64s
    transaction_events: Int64s
    transaction_end: Int64s
    transaction_time_us: Int64s
    transaction_source: Int32s
    transaction_number: Int64s
    gtid_sources: Sequence[str]
    start_gtid_set: str
    file_created: int = 0
    changes: tuple[TableChange, ...] = ()
    transaction_frame: Frames
    open_frame: Frames = dataclasses.field(default_factory=lambda: NO_FRAMES)
    open_gtid: tuple[int, int] = NO_GTID
    statement: LoggedStatement | None = None
    query_event: Int64s = dataclasses.field(default_factory=lambda: NO_QUERIES)
    query_offset: Int64s = dataclasses.field(default_factory=lambda: NO_QUERIES)
    query_length: Int64s = dataclasses.field(default_factory=lambda: NO_QUERIES)
    query_position: Int64s = dataclasses.field(default_factory=lambda: NO_QUERIES)

    @property
    def event_count(self) -> int:
        return len(self.event_offset)

    @property
    def transaction_count(self) -> int:
        return len(self.transaction_end)

    @property
    def byte_count(self) -> int:
        """The number of bytes of the block's row events and rows queries. The limits of the ring count these bytes."""
        return int(self.event_length.sum() + self.query_length.sum())

    @property
    def event_bytes(self) -> Int64s:
        """The number of bytes of each row event, with the rows query (SQL text) that precedes it."""
        if not len(self.query_event):
            return self.event_length
        found = self.event_length.copy()
        found[self.query_event] += self.query_length
        return found

    @property
    def stands_alone(self) -> bool:
        """Whether the block must be a separate batch, because a RENAME in the block gives later rows another lake table."""
        return any(change.renamed_from for change in self.changes)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockSlice:
    """The row events [first_event, last_event) of a block, with its table changes."""

    block: Block
    first_event: int
    last_event: int

    @property
    def changes(self) -> tuple[TableChange, ...]:
        return self.block.changes


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """A part of the stream that `get` hands out: (start, end], up to a transaction boundary. `batch_id` -1 means that there is nothing to
    hand out. `isolated`: the batch consists of a statement that must be a batch of its own according to conf/.
    """

    batch_id: int
    start: Position | None
    end: Position | None
    slices: tuple[BlockSlice, ...] = ()
    event_count: int = 0
    byte_count: int = 0
    isolated: bool = False

    @property
    def empty(self) -> bool:
        return self.batch_id == -1

    @property
    def stands_alone(self) -> bool:
        """Whether the batch must be staged alone: nothing is appended to it, and it is appended to no other batch."""
        return self.isolated or (not self.event_count and any(part.block.stands_alone for part in self.slices))


NOTHING = Batch(batch_id=-1, start=None, end=None)  #: What `get` returns if there is nothing to hand out.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientIdentity:
    """A client's subscription to a destination. As in Canal, two identities that differ only in their filters are equal."""

    destination: str
    client_id: int = 1001
    filter: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consumer:
    """The ledger's record of a consumer: its filter, and the position up to which it has acked. After a restart of the engine, the consumer
    gets the changes after this position again. `identity` distinguishes the consumer from a forgotten consumer with the same `client_id`.
    """

    client_id: int
    filter: str = ""
    cursor: Position
    identity: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutstandingBatch:
    """A batch in flight: the ledger's record, with everything that its run needs to know. `ledger_id`, `batch_id` and `delivery` identify
    one delivery. `delivery` never repeats, over restarts and rollbacks. A batch that is delivered again keeps `batch_id` and `path`.

    - `path`: the directory of the staged files, relative to the destination's directory. `tables`: the tables to merge ("database.table").
    - `appendable`: whether changes may still be appended. An append replaces `end` and `path`. Both are final when a run takes the batch.
    - `first_end`: the order key of the first `end`. After a restore of the ledger, it distinguishes deliveries with the same numbers.
    """

    ledger_id: str
    batch_id: int
    delivery: int
    start: Position
    end: Position
    path: str
    rows: int
    bytes: int
    tables: tuple[str, ...] = ()
    appendable: bool = False
    first_end: int = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoppedTable:
    """A table that has stopped until an operator resumes it. `position` is the position of the first change that was not applied.
    `order_key` is the order key of the statement or table map that stopped the table, or 0 for another or unknown cause.
    """

    database: str
    table: str
    state: TableState
    reason: str
    position: Position
    order_key: int = 0

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """The result of staging a batch, in the directory `path`. `rows` counts row images. `tables` ("database.table") is empty if nothing in
    the batch concerns the lake. `stopped` are the tables that stopped.
    """

    path: Path
    rows: int
    size_bytes: int
    tables: tuple[str, ...]
    first_commit_time_us: int
    stopped: tuple[StoppedTable, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreMetrics:
    """The metrics of an event store at one moment. `…_sequence` and `forgotten_events` (dropped without an ack) count row events."""

    fill_bytes: int
    fill_events: int
    bytes_max: int
    events_max: int
    spilled_bytes: int
    put_sequence: int
    get_sequence: int
    ack_sequence: int
    waiting_transactions: int
    put_wait_seconds: float
    forgotten_events: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a lease, or held it last. `since` is the time of the acquisition, in seconds since 1970. `token` grows with
    each acquisition. `held` is False if the process does not hold the lease any more.
    """

    pid: int
    host: str
    since: float
    token: int
    held: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooKeeperServers:
    """The servers of a ZooKeeper ("host:port,…"), and how to log in. `password` is the location of the password, never the password itself.
    `sasl` is a SASL mechanism, or empty for the scheme `digest`. With `tls`, `ca_file` has the trusted authorities (None: the system's).
    """

    hosts: str = ""
    user: str = ""
    password: str = ""
    sasl: str = ""
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __str__(self) -> str:
        return self.hosts


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerLocation:
    """Where the ledger, leases and run records of a destination are: in its files, or in a record store that several hosts can reach.

    - `kind`: file, memory, sql, zookeeper, mixed or period_mixed, as in conf/.
    - `directory`: the destination's files. `url`: the database in SQLAlchemy's form, for `sql`. `password`: the location of its password.
    - `session_seconds`: a holder that renews nothing for this long loses its leases and locks.
    - `address`: "host:port" where other hosts find this one. `source`: (host, port) of the source, for Canal's cursor.
    - `staging`: URL prefix of staged batches in an object store. Empty if they are in `directory`.
    - `storage_options`: (name, value) for the object store, as in conf/, with locations instead of secrets.
    """

    destination: str
    directory: Path
    kind: str = "file"
    url: str = dataclasses.field(default="", repr=False)  # It may contain a password.
    password: str = ""
    zookeeper: ZooKeeperServers = ZooKeeperServers()
    session_seconds: float = 30.0
    address: str = ""
    source: tuple[str, int] = ("", 0)
    staging: str = ""
    storage_options: tuple[tuple[str, str], ...] = ()

    def staged_url(self, ledger_id: str = "", path: str = "") -> str:
        """Returns the URL of a batch's files in the object store, or "" if staged files are in local directories. The batch has the path
        `path` in the ledger `ledger_id`; two ledgers may use the same path. Without arguments, returns the URL of all batches.
        """
        parts = (self.staging, self.destination, ledger_id, path.rpartition("/")[2])
        return "/".join(part for part in parts if part) if self.staging else ""

    def sibling_url(self, what: str) -> str:
        """Returns the object-store URL of the destination's data of the kind `what`, such as "prepared", or "" if the data is local."""
        return f"{self.staging}/_sluice_{what}/{self.destination}" if self.staging else ""

    @property
    def is_shared(self) -> bool:
        """Whether other hosts can reach the destination's ledger, leases and run records."""
        return self.kind in {"sql", "zookeeper"}

    @property
    def is_apart(self) -> bool:
        """Whether `directory` may be on the engine's host only, because runs need nothing from it."""
        return self.is_shared and bool(self.staging)


class DestinationDir(PosixPath):
    """The folder of a destination, with the location of its ledger and leases. Without a location, both are in the folder."""

    location: LedgerLocation | None = None

    @classmethod
    def of(cls, location: LedgerLocation) -> DestinationDir:
        made = cls(location.directory)
        made.location = dataclasses.replace(location, directory=Path(location.directory))
        return made

    def __reduce__(self) -> Any:
        """Keeps the location when the path is pickled for another process."""
        return (DestinationDir.of, (self.location,)) if self.location else (Path, (str(self),))
