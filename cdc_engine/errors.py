"""Defines all errors that the engine raises, in one tree, with the remedy for each class.

    SluiceError
    ├── ConfigurationError          the configuration or the source is not set up as Sluice needs it
    │   ├── ConfFilesError          everything that is wrong in the files of conf/, reported at once
    │   ├── SourceCheckError        everything that is wrong with the source, reported at once
    │   ├── ReplicaClashError       another replica has the engine's server id
    │   ├── AccessDeniedError       the source refuses the account or its password; tried again, because an operator may change the password
    │   └── SecretUnavailableError  a secret cannot be read where conf/ says it is; tried again, in case it is being replaced
    ├── SourceConnectionError       the connection to the source was lost or refused; tried again with back-off
    │   ├── FilesRenumberedError    the numbers of binlog files decreased during a stream; the next connection finds out why
    │   └── StandbyBehindError      a source that took over lacks transactions that the engine has read; the engine waits for the source
    ├── TableChangedError           a table got another schema while a snapshot reads its rows: the table is divided into chunks again
    │   └── CascadeUnseenError      foreign keys changed rows during a snapshot, and the binlog lacks the changes: the rows are read again
    ├── LedgerLostError             the ledger is gone, though the destination ran before: the state LEDGER_LOST
    ├── PositionLostError           continuity cannot be proven: the state POSITION_LOST
    ├── BinlogFormatError           bytes that violate MySQL's format, with file and offset
    │   ├── ChecksumError           CRC32 of an event does not match
    │   └── UnknownEventError       an unknown event that could carry rows
    │       └── UndoneRowsError     a transaction undoes rows that were already read: the transaction is read again
    ├── TableStoppedError           one table stops: SCHEMA_UNKNOWN, SCHEMA_MISMATCH, TYPE_UNSUPPORTED, …
    ├── NotATableError              row events of a sequence, which is not a table
    ├── LeaseLostError              another process holds the destination
    ├── EngineStartingError         the engine is being started; call again
    ├── EngineStoppedError          an operator stopped the engine, or moved it to another host
    ├── ActRefusedError             an operator's request is not possible in the current state
    ├── MetaError                   a stored record, such as the ledger, cannot be read or written
    │   ├── NotContinuousError      a batch does not begin at the end of the last batch: Sluice reads the stream again from this end
    │   ├── NotSharedError          data that several hosts share could not be uploaded or downloaded: Sluice tries again
    │   └── StaleWriteError         another writer changed the record first: this write changed nothing
    ├── StagingError                a batch could not be written: disk full, not permitted
    │   └── StoreFullError          events could not be stored: disk full, not permitted
    ├── StoreDamagedError           stored events that cannot be read back
    ├── StoreUnfitError             the stored events do not continue at the ledger's cursor, and the source lacks events after the cursor
    ├── HandlerError                an installed handler failed: each tick calls it again, and no batch is handed out until it succeeds
    ├── PublishError                a broker did not accept a message: it is sent again
    └── CanalServiceError           a call of get, ack or rollback that is not allowed
        ├── NotStartedError · NotSubscribedError · UnknownDestinationError
        ├── ConsumerStoppedError    a consumer requires a table that is stopped
        ├── BatchNotFoundError      ack or rollback of a batch id that is not outstanding
        └── BatchNotFirstError      ack or rollback out of order

An error is picklable, because Dagster passes it between processes. The message says what happened, where, and what to do, and never
contains a secret. `code` is the name that operators see in `status` and in docs/reference/states.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Remedy(enum.Enum):
    """Who resolves an error: the engine, an operator or the caller. Each class of errors sets `SluiceError.remedy`."""

    RETRY = "retry"  #: The engine tries again, with a delay. An operator only acts if the error persists.
    OPERATOR = "operator"  #: The engine stops in a named state and waits for an operator.
    CALLER = "caller"  #: The caller of the service made a mistake. The engine continues.


class SluiceError(Exception):
    """The base class of all errors of Sluice."""

    code = "ERROR"
    remedy = Remedy.OPERATOR


def code_and_text(error: BaseException) -> tuple[str, str]:
    """Returns the code and the text of an error. The code of an error that is not a SluiceError, such as a full disk, is "ERROR"."""
    if isinstance(error, SluiceError):
        return error.code, str(error)
    return SluiceError.code, f"{type(error).__name__}: {error}"


class ConfigurationError(SluiceError):
    code = "CONFIGURATION"


class ConfFilesError(ConfigurationError):
    """The files of conf/ are invalid. `problems` has one sentence for each mistake."""

    def __init__(self, directory: Path, problems: Sequence[str]) -> None:
        super().__init__(directory, problems)
        self.directory, self.problems = directory, tuple(problems)

    def __str__(self) -> str:
        return f"{self.directory}: " + "; ".join(self.problems)


class SourceCheckError(ConfigurationError):
    """The source cannot be read as it is configured. `problems` has one sentence for each cause."""

    code = "SOURCE_CHECK"

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "the source cannot be captured: " + "; ".join(self.problems)


class ReplicaClashError(ConfigurationError):
    code = "REPLICA_CLASH"


class AccessDeniedError(ConfigurationError):
    """The source refuses the account, its password or its privileges."""


class SecretUnavailableError(ConfigurationError):
    """A secret cannot be read from the variable, file or command that conf/ names."""


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


class CascadeUnseenError(TableChangedError):
    """Foreign keys changed rows while a snapshot read the rows, and the changes cannot be derived from the binlog."""


class LedgerLostError(SluiceError):
    code = "LEDGER_LOST"


class PositionLostError(SluiceError):
    code = "POSITION_LOST"


class BinlogFormatError(SluiceError):
    """The stream cannot be parsed. The event that cannot be parsed begins at `offset` (bytes) of `file`."""

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


class XaUnreadError(UnknownEventError):
    """An XA transaction was prepared before the scan began, and is committed in the scanned part of the binlog."""


class UndoneRowsError(UnknownEventError):
    """A transaction undoes row events by a ROLLBACK or ROLLBACK TO, after the scan of the binlog has yielded these row events. The caller
    of the scan must drop the rows of the open transaction, and scan the transaction again with the same `UndoneRows`
    (`binlog.events.undone_rows`). The second scan leaves the undone events out.
    """


class TableStoppedError(SluiceError):
    """A table cannot continue. `state` is a `states.TableState`, for example SCHEMA_UNKNOWN. `version` is the TableVersion with which
    consumers read the table's rows after the stop, or None if consumers do not get them.
    """

    code = "TABLE_STOPPED"

    def __init__(self, database: str, table: str, state: str, reason: str, version: Any = None) -> None:
        super().__init__(database, table, state, reason)
        self.database, self.table, self.state, self.reason = database, table, state, reason
        self.version = version

    def __str__(self) -> str:
        return f"table {self.database}.{self.table} stopped: {self.state}: {self.reason}"


class NotATableError(SluiceError):
    """Row events belong to a sequence. A sequence is not a table, and the lake does not have it, so these row events are skipped."""

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
    """Data that several hosts share (records, ledgers, copies for runs and standbys) could not be uploaded or downloaded."""

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


class BatchNotFoundError(CanalServiceError):
    code = "BATCH_NOT_FOUND"


class BatchNotFirstError(CanalServiceError):
    code = "BATCH_NOT_FIRST"
