"""Defines the values that packages of the engine exchange. `ports` has the protocols. Stages import these two modules, never each other.

Data flows as follows. `parser` reads bytes and makes a `Block`. `sink` removes excluded rows and puts the `Block` into the store. The store
hands out a `Batch` of `BlockSlice`s, which ends on a transaction boundary. `staging` decodes a batch into one Parquet file per table and
schema version. `meta` keeps the `Ledger` of what was handed out and acked.
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
    """The kind of a staged row image. The names are those of Delta's change data feed."""

    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4


class RowEventKind(enum.IntEnum):
    """What a row event does to its table: the protocol's WRITE, UPDATE or DELETE rows, in v1 and v2 alike."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table, in the layout of its row images.

    `type_code`: MYSQL_TYPE_* of the table map, with the real type for ENUM and SET instead of STRING. `metadata`: the table map's
    metadata of the column as one integer, as MySQL's documentation lays it out (fraction digits, length, precision << 8 | scale, …).
    `charset`: MySQL's charset name ("utf8mb4", "latin1", "binary", …) for character, enum and set columns; empty for others. `labels`:
    for enum and set. `mysql_type`: the declared type if the schema history knows it ("int unsigned"), otherwise a derived one. `default`:
    the value of a row whose INSERT omits the column, as the server prints it; hexadecimal for bytes, (None,) for NULL, () if it is
    unknown or not a constant. `generated`: "virtual", "stored", empty for a column that is not generated, or "unknown" if the column is
    known from a table map only; for the times of a system-versioned row see binlog/rows/history_rows.
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
    """A table with the schema that is valid for the row events that refer to it. `version`: a short digest, equal for equal schemas.

    `cascades`: the changes that foreign keys pass on from its rows to captured tables, over all levels. `watched`: its events are read only
    for its cascades; the table itself is not captured. `follows`: its own rows change with those of other tables. `stopped`: consumers get
    these rows and the lake does not. `unreadable`: why not even consumers can decode them; `columns` is empty then.
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
    """What a DDL statement did to a captured table, as far as it affects the lake."""

    SCHEMA = "schema"  #: The table was created or got columns: the Delta table must have these columns.
    TRUNCATE = "truncate"  #: All rows were removed.
    STOPPED = "stopped"  #: The table stops for the lake. `state` and `reason` contain the cause.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableChange:
    """A change of a table by a statement, in stream order with the row events. `order_key`: the order key of the statement event's end.

    `schema`: the table's schema afterwards; for STOPPED, how consumers read it, or None. `alterations`: for SCHEMA, the changes that the
    lake's table must follow, in order, without items that a policy left out. `fills`: for SCHEMA, (column, value as in Column.default) of
    each added column that has a value in existing rows, as these have no row events; other added columns are NULL there. `renamed_from`:
    "database.table" of the captured table that got this name. For SCHEMA, the lake's rows are those that it had under that name immediately
    before `order_key`; empty if the table keeps its own rows.
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
    """The session of a statement, as its query event describes it. It decides how the statement is parsed and what it does to rows.

    `sql_mode`: its bits. `started_us`: the value of CURRENT_TIMESTAMP, µs since 1970, in whole seconds unless `fraction`; 0 if not
    reported. `time_zone`: as it was set; empty if not reported. `explicit_timestamps`: explicit_defaults_for_timestamp; None if not
    reported. `client`, `connection`, `server`: the charsets of the statement's text, of its literals (collation_connection), and of a
    database that is created without a charset (collation_server); empty if not reported. `flavour`: "mysql" or "mariadb"; empty if unknown.
    `thread_specific`: the statement depends on its session, for example on a temporary table with the name of another table.
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

# A transaction's first event (QUERY "BEGIN") and last event (XID, or QUERY "COMMIT"): offsets in the file, lengths in bytes, seconds
# since 1970; thread of the session; `xid`, -1 if a COMMIT ended it; id of the server that wrote it. `begin` is -1 if there is no first
# event (a statement without BEGIN, or the beginning of a file). `committed`, `sequence`: the logical clock in MySQL's GTID event (the
# last transaction on which this one depends, and its own number in the file), -1 if it has none.
FRAME_FIELDS = (
    *("begin", "begin_length", "begin_seconds", "thread"),
    *("close", "close_length", "close_seconds", "xid", "server"),
    *("committed", "sequence"),
)
FRAME = np.dtype([(name, np.int64) for name in FRAME_FIELDS])
Frames = npt.NDArray[np.void]  #: structured array of FRAME
NO_FRAMES: Frames = np.zeros(0, FRAME)
NO_GTID = (-1, 0)  #: Source and number of a transaction without a GTID.
NO_QUERIES: Int64s = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggedStatement:
    """A statement in the binlog that does not change rows. `offset`, `length`: those of its event. `seconds`: time since 1970."""

    text: str
    database: str
    offset: int
    length: int
    seconds: int
    server: int
    session: StatementSession


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A buffer of whole binlog events, and parallel arrays with what the scan found in it. Immutable once made.

    One entry per *row event* (n): `event_offset` (int64, of the event's 19-byte header in `buffer`), `event_length` (int64, bytes without
    checksum), `event_kind` (int8, RowEventKind), `event_version` (int8, 1 or 2: the layout of the rows header; 3: as 2, an update whose
    JSON values may be differences), `event_table` (int32, index into `tables`), `event_position` (int64, file offset of the event's first
    byte, or of the compressed event or XA COMMIT that contained it), `event_time_us` (int64, commit time), `event_transaction_offset`
    (int64, file offset that represents the event's transaction: after its first event, and after a DDL statement in it that precedes the
    rows. It is above everything that ended before and below everything that follows, it is the same whenever the stream is read, and it
    makes the order key of the rows).

    One entry per *transaction that ends here* (t): `transaction_events` (int64, row events of this block up to its end, ascending),
    `transaction_end` (int64, file offset after its last event), `transaction_time_us`, `transaction_source` (int32, index into
    `gtid_sources`, -1 without GTID), `transaction_number` (int64, gno or sequence number), `transaction_frame` (FRAME).

    All events of a block are in one binlog `file` of one `epoch`. Row events after the last transaction end belong to an open
    transaction, which continues in the next block. `changes` is non-empty only in a block without row events (a DDL statement is a block
    of its own). `start_gtid_set`: the executed set before this block's first transaction, as text. `file_created`: as in `Position`.
    `open_frame`: FRAME of the transaction that is open at the block's end (at most one, its end is not known yet); empty if none is.
    `open_gtid`: its source and number, as those of a transaction that ends.
    `statement`: the statement that this block consists of, whether or not it changes a captured table.

    One entry per *rows query* (the event with the SQL text of a statement that changed rows, if a consumer is shown them): `query_event`
    (int64, index of the first row event of the statement, ascending), `query_offset`, `query_length` (int64, as those of row events) and
    `query_position` (int64, as `event_position`).
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
        """The bytes of the block's row events; the ring counts them."""
        return int(self.event_length.sum() + self.query_length.sum())

    @property
    def event_bytes(self) -> Int64s:
        """The bytes of each row event, including the SQL text that precedes it."""
        if not len(self.query_event):
            return self.event_length
        found = self.event_length.copy()
        found[self.query_event] += self.query_length
        return found

    @property
    def stands_alone(self) -> bool:
        """Whether the block must be a batch of its own: it renames tables, and rows before and after it belong to different lake tables."""
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
    """A part of the stream, as `get` hands it out: (start, end], ending on a transaction boundary. `batch_id` -1: there is nothing to hand
    out. `isolated`: the batch is a statement for which conf/ requires a batch of its own.
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
        """Whether this batch must be staged alone: nothing is appended to it, and it is not appended to another batch."""
        return self.isolated or (not self.event_count and any(part.block.stands_alone for part in self.slices))


NOTHING = Batch(batch_id=-1, start=None, end=None)  #: The result of `get` if there is nothing to hand out.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientIdentity:
    """A client's subscription to a destination. Equality ignores the filter, as in Canal."""

    destination: str
    client_id: int = 1001
    filter: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consumer:
    """The ledger's record of a consumer other than the lake: its filter, and the position up to which it has acked. Batches without an ack
    are handed out again after a restart. `identity`: differs from that of earlier consumers with this number; empty until it is needed.
    """

    client_id: int
    filter: str = ""
    cursor: Position
    identity: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutstandingBatch:
    """A staged batch that waits for its ack: a record of the ledger with everything that a run needs to know of it.

    (ledger_id, batch_id, delivery) identifies one delivery: `delivery` never repeats, over restarts and rollbacks. A batch that is
    delivered again keeps `batch_id` and `path`: the staged directory, relative to the destination's directory. `tables`: the
    "database.table" names to merge. `appendable`: `end` and `path` are not fixed until its run takes it, because changes may be appended
    until then. `first_end`: order key of the end with which it was staged first, never above `end`. It keeps deliveries distinct after a
    restored older ledger gives the same numbers to other changes.
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
    """A table that is stopped at `position` (that of the first change that was not applied) until an operator resumes it."""

    database: str
    table: str
    state: TableState
    reason: str
    position: Position

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """The result of staging a batch. `path`: the staged directory. `rows`: the number of row images.

    `tables`: "database.table"; empty if nothing in the batch concerns the lake. `stopped`: tables that stopped.
    """

    path: Path
    rows: int
    size_bytes: int
    tables: tuple[str, ...]
    first_commit_time_us: int
    stopped: tuple[StoppedTable, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreMetrics:
    """Metrics of an event store at one moment. Sequences count row events since the store was made. `forgotten_events`: those that were put
    and then dropped before an ack; they are put again.
    """

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
    """The process that holds a lease, or held it last. `since`: seconds since 1970. `token` grows with each acquisition. `held`: whether
    somebody holds the lease now; False for a record that a dead process left.
    """

    pid: int
    host: str
    since: float
    token: int
    held: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooKeeperServers:
    """The addresses of a ZooKeeper's servers, as "host:port,…", and the login. `password`: where the password is, never the password
    itself.

    `sasl`: mechanism; empty: the scheme `digest`. `tls`: with `ca_file`, or the system's authorities, and a client certificate.
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
    """The location of a destination's ledger, leases and run records: its files, or a store that several hosts can reach.

    `kind`: file, memory, sql, zookeeper, mixed or period_mixed, as conf/ explains them. `directory`: the directory of the destination's
    files. `url`: the database's URL in SQLAlchemy's form, for `sql`. `password`: the location of its password. `zookeeper`: the ZooKeeper
    servers. `session_seconds`: a holder that renews nothing for this long loses its leases and locks. `address`: "host:port" at which other
    hosts find this one. `source`: (host, port) of the source, for Canal's cursor. `staging`: prefix of an object store for staged batches;
    empty: they are in `directory`. `storage_options`: (name, value) of that store, as in conf/, with the locations of secrets instead of
    secrets.
    """

    destination: str
    directory: Path
    kind: str = "file"
    url: str = dataclasses.field(default="", repr=False)  # The URL may contain a password.
    password: str = ""
    zookeeper: ZooKeeperServers = ZooKeeperServers()
    session_seconds: float = 30.0
    address: str = ""
    source: tuple[str, int] = ("", 0)
    staging: str = ""
    storage_options: tuple[tuple[str, str], ...] = ()

    def staged_url(self, ledger_id: str = "", path: str = "") -> str:
        """Returns the URL of a batch's files in the store, for the ledger that handed the batch out under `path`; empty if they are in
        `directory`.

        Each ledger has its own folder, because batches of two ledgers may have one name. Without arguments: the folder of all batches.
        """
        parts = (self.staging, self.destination, ledger_id, path.rpartition("/")[2])
        return "/".join(part for part in parts if part) if self.staging else ""

    def sibling_url(self, what: str) -> str:
        """Returns the URL of the destination's other data in the store, named `what`; empty if the data is in the destination's
        directory.
        """
        return f"{self.staging}/_sluice_{what}/{self.destination}" if self.staging else ""

    @property
    def is_shared(self) -> bool:
        """Whether other hosts can reach its records."""
        return self.kind in {"sql", "zookeeper"}

    @property
    def is_apart(self) -> bool:
        """Whether runs reach everything they need without the directory, which may then be on the engine's host only."""
        return self.is_shared and bool(self.staging)


class DestinationDir(PosixPath):
    """The folder of a destination, with the location of its ledger and leases. A path without a location is a folder that contains them."""

    location: LedgerLocation | None = None

    @classmethod
    def of(cls, location: LedgerLocation) -> DestinationDir:
        made = cls(location.directory)
        made.location = dataclasses.replace(location, directory=Path(location.directory))
        return made

    def __reduce__(self) -> Any:
        """Keeps the location when the path is sent to another process."""
        return (DestinationDir.of, (self.location,)) if self.location else (Path, (str(self),))
