"""The values through which the rooms meet; their promises are in `ports`. Stages import these modules, never each other.

The way of a change: `parser` reads bytes and makes a `Block`; `sink` drops what is filtered out and puts a `Block` into the store; the
store hands out a `Batch` of `BlockSlice`s that ends on a transaction boundary; `staging` decodes a batch into one Parquet file per
table and schema version; `meta` keeps the `Ledger` of what was handed out and acked.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from cdc_engine.position import Position
from cdc_engine.states import TableState

Bytes = npt.NDArray[np.uint8]
Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Operation(enum.IntEnum):
    """What one staged row image is. The names are those of Delta's change data feed."""

    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4


class RowEventKind(enum.IntEnum):
    """What a row event does to its table; the wire's WRITE, UPDATE and DELETE rows, v1 and v2 alike."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table as its row images are laid out.

    `type_code`: MYSQL_TYPE_* of the table map, with ENUM and SET told apart from STRING (real type). `metadata`: the table map's
    metadata of the column as one integer, as mysql's docs lay it out (fraction digits, length, precision << 8 | scale, …).
    `charset`: MySQL's charset name ("utf8mb4", "latin1", "binary", …) of character, enum, set columns; empty otherwise.
    `labels`: of enum and set. `mysql_type`: declared type text where the schema history knows it ("int unsigned"), else derived.
    `default`: the value of a row whose INSERT leaves the column out, as the server prints it, of bytes their hexadecimal, (None,) for NULL;
    () where it is not known or no constant. `generated`: "virtual", "stored", empty for a column that is not, or "unknown" where only a
    table map told of the column; of the times of a system-versioned row as in binlog/rows/history_rows.
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
class Cascade:
    """A foreign key by which rows of `child` change without row events when rows of `parent` (both: database, table) go or change.

    `columns` of the child hold what the `referenced` columns of the parent do. `on_delete`, `on_update`: CASCADE, SET NULL, or empty.
    `doubt`: why it is not sure that it is so, or empty. `captured`: whether the child is. `key`: the child's primary key. `generated`: it
    has generated columns. `dated`: one of `columns` is a date, which conf/ may have otherwise in the lake. `unlike`: the
    values of both cannot be held against each other, for the reason in `doubt`.
    """

    name: str
    parent: tuple[str, str]
    child: tuple[str, str]
    columns: tuple[str, ...]
    referenced: tuple[str, ...]
    on_delete: str = ""
    on_update: str = ""
    doubt: str = ""
    captured: bool = True
    key: tuple[str, ...] = ()
    generated: bool = False
    dated: bool = False
    unlike: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableVersion:
    """A table with the schema valid for the row events that refer to it. `version` is stable for equal schemas (a short digest).

    `cascades`: what changes of its rows set off in captured tables, over all levels. `watched`: its events are read for that alone, the
    table itself is not captured. `follows`: its own rows change with those of other tables.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    version: str = ""
    cascades: tuple[Cascade, ...] = ()
    watched: bool = False
    follows: bool = False

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


class TableChangeKind(enum.Enum):
    """What a DDL statement did to a captured table, as far as the lake is concerned."""

    SCHEMA = "schema"  #: created, or columns added: the Delta table must have these columns
    TRUNCATE = "truncate"  #: all rows are gone
    STOPPED = "stopped"  #: the table cannot go on; `state` and `reason` say why


class AlterationKind(enum.Enum):
    """What a DDL statement did to one column or to the key of a table. A policy is configured for each (`schema_changes`)."""

    ADD = "add"
    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"  #: another type that holds every value of the old one as the same value
    CONVERT = "convert"  #: any other type: narrower, or another kind of value
    KEY = "key"  #: the columns of the primary key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alteration:
    """One item of what a statement altered. `new_name`: of RENAME. Types are MySQL's text, of WIDEN and CONVERT; of KEY the columns.

    `plan`: how the lake is to follow, a word of the policy of its kind (`table_meta.policy`); empty until a policy has decided.
    """

    kind: AlterationKind
    column: str = ""
    new_name: str = ""
    old_type: str = ""
    new_type: str = ""
    plan: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableChange:
    """A change of a table itself, in stream order with the row events. `order_key` is that of the statement's event end.

    `alterations`: of SCHEMA, what the lake's table is to follow, in the statement's order; what a policy left out is not in it.

    `fills`: of SCHEMA, (column, value as in Column.default) of each added column that rows already there hold a value in: the binlog has no
    row events for them. An added column that is not in it is NULL in those rows.

    `renamed_from`: "database.table" of the captured table that got this name. Of SCHEMA, the lake's rows are those that it had under that
    name right before `order_key`; empty where the table keeps its own.
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
    """What a query event tells of the session that ran its statement: it decides how the statement is read and what it does to rows.

    `sql_mode`: its bits. `started_us`: what CURRENT_TIMESTAMP was, µs since 1970, of whole seconds unless `fraction`; 0 where not told.
    `time_zone`: as it was set, empty where not told. `explicit_timestamps`: explicit_defaults_for_timestamp, None where not told.
    `client`, `connection`, `server`: the charsets of the statement's text, of its literals (collation_connection), and of a database
    that is made without one (collation_server); empty where not told.
    `flavour`: of the server, "mysql" or "mariadb", empty where not known.
    `thread_specific`: the statement used what only its session has, which may be a temporary table with the name of another one.
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

# What frames a transaction in the binlog: its first event (QUERY, "BEGIN") and its last (XID, or QUERY "COMMIT"): offsets in the file and
# lengths in bytes, seconds since 1970; thread of the session, `xid` -1 where a COMMIT ended it, id of the server that wrote it.
# `begin` -1: nothing began it (a statement alone, or the beginning of a file).
FRAME_FIELDS = (
    *("begin", "begin_length", "begin_seconds", "thread"),
    *("close", "close_length", "close_seconds", "xid", "server"),
)
FRAME = np.dtype([(name, np.int64) for name in FRAME_FIELDS])
Frames = npt.NDArray[np.void]  #: structured, of FRAME
NO_FRAMES: Frames = np.zeros(0, FRAME)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggedStatement:
    """A statement as the binlog has it, which is no change of rows. `offset`, `length`: of its event; `seconds` since 1970."""

    text: str
    database: str
    offset: int
    length: int
    seconds: int
    server: int
    session: StatementSession


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A buffer of whole binlog events and what the scan found in it, as parallel arrays. Immutable once made.

    One entry a *row event* (n): `event_offset` (int64, of the event's 19-byte header in `buffer`), `event_length` (int64, bytes without
    checksum), `event_kind` (int8, RowEventKind), `event_version` (int8, 1 or 2: layout of the rows header; 3: as 2, an update whose JSON
    values may be differences), `event_table` (int32, index into `tables`), `event_position` (int64, file offset of the event's first
    byte, or of the compressed event or XA COMMIT it came out of), `event_time_us` (int64, commit time), `event_place` (int64, file
    offset that stands for the event's transaction: after its first event, and after a DDL statement in it that comes before the rows. It
    is above all that ended before and below what comes after, the same whenever the stream is read, and makes the order key of its rows).
    One entry a *transaction that ends here* (t): `transaction_events` (int64, row events of this block up to its end, ascending),
    `transaction_end` (int64, file offset after its last event), `transaction_time_us`, `transaction_source` (int32, index into
    `gtid_sources`, -1 without GTID), `transaction_number` (int64, gno or sequence number).
    All events of a block lie in one binlog `file` of one `epoch`. Row events after the last transaction end belong to a transaction that
    is still open: it goes on in the next block. `changes` is non-empty only in a block without row events (a DDL is a block alone).
    `start_gtid_set`: the executed set before this block's first transaction, text form. `file_created`: as in `Position`.
    `transaction_frame`: FRAME, one a transaction that ends here; `open_frame`: of the one that is open at the block's end (at most one,
    its end not known yet), empty where none is. `statement`: the one that this block is of, whether or not it changes a captured table.
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
    event_place: Int64s
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
    statement: LoggedStatement | None = None

    @property
    def event_count(self) -> int:
        return len(self.event_offset)

    @property
    def transaction_count(self) -> int:
        return len(self.transaction_end)

    @property
    def byte_count(self) -> int:
        """Bytes of the row events kept; what the ring counts."""
        return int(self.event_length.sum())

    @property
    def stands_alone(self) -> bool:
        """Whether it is a batch of its own: tables changed names, and rows of before and after it belong to other tables of the lake."""
        return any(change.renamed_from for change in self.changes)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockSlice:
    """Row events [first_event, last_event) of a block, with its table changes."""

    block: Block
    first_event: int
    last_event: int

    @property
    def changes(self) -> tuple[TableChange, ...]:
        return self.block.changes


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What `get` hands out: everything in (start, end], ending on a transaction boundary. `batch_id` -1: nothing waits.

    `isolated`: a statement that conf/ wants to have a batch of its own.
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
        """Whether nothing may follow it in the same staged batch."""
        return self.isolated or (not self.event_count and any(part.block.stands_alone for part in self.slices))


NOTHING = Batch(batch_id=-1, start=None, end=None)  #: what `get` hands out when nothing waits


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientIdentity:
    """A subscriber of a destination. Equality ignores the filter, as in canal.md §5."""

    destination: str
    client_id: int = 1001
    filter: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consumer:
    """A consumer of a destination beside the lake, as the ledger keeps it: its filter, and up to where it has acked.

    What was handed out to it and waits for its ack is not kept: after a restart that comes again.
    """

    client_id: int
    filter: str = ""
    cursor: Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutstandingBatch:
    """A staged batch that waits for its ack: one record of the ledger, and all that a run needs to know of its batch.

    (ledger_id, end, delivery) names one hand-out for ever: `delivery` never repeats, over restarts and rollbacks.
    `path`: the staged directory, relative to the destination's directory; a batch that is delivered again keeps it. `tables`: the
    "database.table" that are to be merged from it.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoppedTable:
    """A table that cannot go on, from `position` (the place of the first change that was not taken) until an operator resumes it."""

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
    """What staging made of a batch. `path`: the staged directory; no tables: nothing in it concerns the lake. `rows`: row images.

    `tables`: "database.table". `stopped`: tables that could not go on.
    """

    path: Path
    rows: int
    size_bytes: int
    tables: tuple[str, ...]
    first_commit_time_us: int
    stopped: tuple[StoppedTable, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreMetrics:
    """Figures of one moment of an event store. Sequences count row events since the store was made, but for `forgotten_events`: those that
    were put and forgotten before an ack, which are put again.
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
    """Who holds a lease, or held it last. `since`: seconds since 1970. `token` grows with each acquisition.

    `held`: whether the lease is held now; False for what a process that died left behind.
    """

    pid: int
    host: str
    since: float
    token: int
    held: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetaPlace:
    """Where a destination's ledger, leases and run records are: beside its files, or where several hosts reach them.

    `kind`: file, memory, sql, zookeeper, mixed or period_mixed, as conf/ explains them. `directory`: of the destination's files. `url`:
    SQLAlchemy's, of `sql`. `hosts`: "host:port,…" of ZooKeeper. `session_seconds`: after so long without a word a holder has lost what
    it held. `address`: "host:port" by which others find this host. `source`: (host, port) of the source, for Canal's cursor.
    `staging`: prefix of an object store where staged batches are; empty: in `directory`. `storage_options`: (name, value) of that store, as
    conf/ says them: secrets by the names of their variables.
    """

    destination: str
    directory: Path
    kind: str = "file"
    url: str = dataclasses.field(default="", repr=False)  # may hold a password
    hosts: str = ""
    session_seconds: float = 30.0
    period_seconds: float = 1.0
    address: str = ""
    source: tuple[str, int] = ("", 0)
    staging: str = ""
    storage_options: tuple[tuple[str, str], ...] = ()

    def staged_url(self, ledger_id: str = "", path: str = "") -> str:
        """Where the store has a batch's files: of the ledger that handed it out under `path`. Empty: they are in `directory` alone.

        A ledger has a folder of its own there: a batch of another one may have the same name. Without them: where all are.
        """
        parts = (self.staging, self.destination, ledger_id, path.rpartition("/")[2])
        return "/".join(part for part in parts if part) if self.staging else ""

    def beside_url(self, what: str) -> str:
        """Where the store has something else of the destination, `what` it is; empty: it is where its directory is."""
        return f"{self.staging}/_sluice_{what}/{self.destination}" if self.staging else ""

    @property
    def is_shared(self) -> bool:
        """Whether other hosts reach what is kept there."""
        return self.kind in {"sql", "zookeeper"}

    @property
    def is_apart(self) -> bool:
        """Whether runs reach all that they need without the directory, which then may be of the engine's host alone."""
        return self.is_shared and bool(self.staging)


class DestinationDir(PosixPath):
    """A destination's folder that knows where its ledger and leases are; a plain path is a folder that has them itself."""

    place: MetaPlace | None = None

    @classmethod
    def of(cls, place: MetaPlace) -> DestinationDir:
        made = cls(place.directory)
        made.place = dataclasses.replace(place, directory=Path(place.directory))
        return made

    def __reduce__(self) -> Any:
        """Where it is sent to another process it still knows."""
        return (DestinationDir.of, (self.place,)) if self.place else (Path, (str(self),))
