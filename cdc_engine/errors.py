"""Every error the engine raises, in one tree, with what is to be done about each kind in one table.

    SluiceError
    ├── ConfigurationError          the configuration or the source is not set up as Sluice needs it
    │   ├── SourceCheckError        all that is wrong with the source, said at once
    │   └── ReplicaClashError       another replica has our server id
    ├── SourceConnectionError       the connection to the source was lost or refused; tried again with back-off
    │   ├── FilesRenumberedError    amid a stream the files' names went back; the next connection decides
    │   └── StandbyBehindError      a source that took over lacks what was read from the one before; it is waited for
    ├── TableChangedError           a table is not what its schema says while its rows are read: chunk it anew by the schema of now
    ├── LedgerLostError             the ledger is gone, though the destination ran before: the state LEDGER_LOST
    ├── PositionLostError           continuity cannot be proven: the state POSITION_LOST
    ├── BinlogFormatError           bytes that are not what MySQL's format says, with file and offset
    │   ├── ChecksumError           CRC32 of an event does not match
    │   └── UnknownEventError       an event that could carry rows and is not understood
    ├── TableStoppedError           one table cannot go on: SCHEMA_UNKNOWN, SCHEMA_MISMATCH, TYPE_UNSUPPORTED, …
    ├── NotATableError              row events of what is no table: a sequence
    ├── LeaseLostError              another process holds the destination
    ├── EngineStartingError         the engine is being started; ask again
    ├── EngineStoppedError          an operator stopped the engine, for good or for another host
    ├── ActRefusedError             what an operator asked for cannot be done as things stand
    ├── MetaError                   the meta file is unreadable or was written by something else
    │   ├── NotContinuousError      a batch does not begin where the last one ends: read again from there
    │   ├── NotSharedError          what several hosts share could not be put where it is, or taken from there: it is tried again
    │   └── StaleWriteError         another one has written the same text meanwhile: nothing was changed
    ├── StagingError                a batch could not be written: disk full, not permitted
    │   └── StoreFullError          events could not be stored: disk full, not permitted
    ├── StoreDamagedError           stored events that cannot be read back
    ├── StoreUnfitError             stored events that do not fit the ledger, and the source cannot give them again
    ├── HandlerError                a handler that somebody installed failed: called again with each tick, the batches wait
    ├── PublishError                a broker did not take a message: it is sent again
    └── CanalServiceError           a wrong call of get, ack or rollback (canal.md §6.1)
        ├── NotStartedError · NotSubscribedError · UnknownDestinationError
        ├── ConsumerStoppedError    a table that a consumer wants cannot be read on
        ├── OutstandingBatchError   auto-acking get while batches wait for their ack
        ├── BatchNotFoundError      ack or rollback of a batch id that is not outstanding
        └── BatchNotFirstError      ack or rollback out of order

An error is picklable (it crosses into Dagster's processes), its message says what happened, where, and what to do, and never holds a
secret. `code` is the name an operator meets in `status` and in docs/operations.md.
"""

from __future__ import annotations

import enum


class Remedy(enum.Enum):
    """What the engine does about an error; one value a class, in `SluiceError.remedy`."""

    RETRY = "retry"  #: reconnect with back-off; nothing for an operator to do at first
    OPERATOR = "operator"  #: stop in a named state and wait for an operator
    CALLER = "caller"  #: the caller of the service made a mistake; the engine goes on


class SluiceError(Exception):
    """The base of all errors of Sluice."""

    code = "ERROR"
    remedy = Remedy.OPERATOR


class ConfigurationError(SluiceError):
    code = "CONFIGURATION"


class SourceCheckError(ConfigurationError):
    """`problems`: one sentence each, in the order they were found."""

    code = "SOURCE_CHECK"

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "the source cannot be captured: " + "; ".join(self.problems)


class ReplicaClashError(ConfigurationError):
    code = "REPLICA_CLASH"


class SourceConnectionError(SluiceError):
    code = "SOURCE_CONNECTION"
    remedy = Remedy.RETRY


class FilesRenumberedError(SourceConnectionError):
    code = "FILES_RENUMBERED"


class StandbyBehindError(SourceConnectionError):
    code = "STANDBY_BEHIND"


class TableChangedError(SluiceError):
    code = "TABLE_CHANGED"
    remedy = Remedy.RETRY


class LedgerLostError(SluiceError):
    code = "LEDGER_LOST"


class PositionLostError(SluiceError):
    code = "POSITION_LOST"


class BinlogFormatError(SluiceError):
    """`file` and `offset` (of the event's start, bytes) say where the stream could not be read."""

    code = "BINLOG_FORMAT"

    def __init__(self, reason: str, file: str = "", offset: int = -1) -> None:
        super().__init__(reason, file, offset)
        self.reason, self.file, self.offset = reason, file, offset

    def __str__(self) -> str:
        where = f" at {self.file}:{self.offset}" if self.file else ""
        return f"{self.reason}{where}"


class ChecksumError(BinlogFormatError):
    code = "CHECKSUM"
    remedy = Remedy.RETRY


class UnknownEventError(BinlogFormatError):
    code = "UNKNOWN_EVENT"


class TableStoppedError(SluiceError):
    """`state` is SCHEMA_UNKNOWN, SCHEMA_MISMATCH, TYPE_UNSUPPORTED, IMAGE_NOT_FULL or DDL_UNSUPPORTED."""

    code = "TABLE_STOPPED"

    def __init__(self, database: str, table: str, state: str, reason: str) -> None:
        super().__init__(database, table, state, reason)
        self.database, self.table, self.state, self.reason = database, table, state, reason

    def __str__(self) -> str:
        return f"table {self.database}.{self.table} stopped: {self.state}: {self.reason}"


class NotATableError(SluiceError):
    """Row events of a sequence, which is no table and has none in the lake: they are passed over."""

    code = "NOT_A_TABLE"


class LeaseLostError(SluiceError):
    code = "LEASE_LOST"


class EngineStartingError(SluiceError):
    code = "STARTING"
    remedy = Remedy.RETRY


class EngineStoppedError(SluiceError):
    code = "STOPPED"


class ActRefusedError(SluiceError):
    code = "ACT_REFUSED"
    remedy = Remedy.CALLER


class MetaError(SluiceError):
    code = "META"


class NotContinuousError(MetaError):
    code = "NOT_CONTINUOUS"


class StaleWriteError(MetaError):
    code = "STALE_WRITE"
    remedy = Remedy.CALLER


class NotSharedError(MetaError):
    """What several hosts share (texts, ledgers, copies for runs and standbys) could not be put where it is, or taken from there."""

    remedy = Remedy.RETRY


class StagingError(SluiceError):
    code = "STAGING"


class StoreFullError(StagingError):
    code = "STORE_FULL"


class StoreDamagedError(SluiceError):
    code = "STORE_DAMAGED"


class StoreUnfitError(SluiceError):
    code = "STORE_UNFIT"


class HandlerError(SluiceError):
    code = "HANDLER_FAILED"
    remedy = Remedy.RETRY


class PublishError(SluiceError):
    code = "PUBLISH"
    remedy = Remedy.RETRY


class CanalServiceError(SluiceError):
    code = "SERVICE"
    remedy = Remedy.CALLER


class NotStartedError(CanalServiceError):
    code = "NOT_STARTED"


class NotSubscribedError(CanalServiceError):
    code = "NOT_SUBSCRIBED"


class UnknownDestinationError(CanalServiceError):
    code = "UNKNOWN_DESTINATION"


class ConsumerStoppedError(CanalServiceError):
    code = "CONSUMER_STOPPED"


class OutstandingBatchError(CanalServiceError):
    code = "OUTSTANDING_BATCH"


class BatchNotFoundError(CanalServiceError):
    code = "BATCH_NOT_FOUND"


class BatchNotFirstError(CanalServiceError):
    code = "BATCH_NOT_FIRST"
