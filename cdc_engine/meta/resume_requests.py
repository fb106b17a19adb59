"""Stores operators' requests about single tables, one record per table. `acts` writes a record, and the running engine executes the request
and removes the record.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from pathlib import Path

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.contract import RecordStore, StoredRecord
from sluice.cdc_engine.records.location import record_store

FOLDER = "resume-requests"
BEGIN_FILE = "new-start.json"


class ResumeKind(enum.StrEnum):
    """What an operator requests for a table."""

    RESUME = "resume"  #: The table continues from the position at which it stopped.
    RE_SNAPSHOT = "re-snapshot"  #: The table continues at the cursor, and is re-snapshotted.
    CANCEL = "cancel"  #: The snapshot is canceled, and the table stops at the position up to which it is merged.


@dataclasses.dataclass(frozen=True)
class ResumeRequest:
    """An operator's request about a table. `record` is the name of the request's record in `store`, and `version` the version of the record
    that was read. None stands for any version.
    """

    database: str
    table: str
    record: str
    store: RecordStore
    kind: ResumeKind = ResumeKind.RESUME
    version: int | None = None

    def done(self) -> None:
        """Removes the request after it was executed. Keeps a later request that has replaced it meanwhile. Raises MetaError if the record
        store does not answer.
        """
        self.store.remove(self.record, self.version)

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def request(destination_dir: Path, database: str, table: str, kind: ResumeKind = ResumeKind.RESUME) -> None:
    """Requests that the destination's engine resumes or re-snapshots a table, or cancels its snapshot, now or when the engine runs next.
    Replaces an earlier request for the table. Raises MetaError if the record store does not answer.
    """
    digest = hashlib.sha256(json.dumps([database, table]).encode()).hexdigest()[:32]
    text = json.dumps({"database": database, "table": table, "kind": kind})
    record_store(destination_dir).put(f"{FOLDER}/{digest}.json", text)


def requests(destination_dir: Path) -> tuple[ResumeRequest, ...]:
    """Returns the requests that wait. Raises MetaError if a request cannot be read."""
    store = record_store(destination_dir)
    return tuple(_parsed(store, name, stored) for name, stored in sorted(store.read_all(f"{FOLDER}/").items()))


def _parsed(store: RecordStore, name: str, stored: StoredRecord) -> ResumeRequest:
    try:
        record = json.loads(stored.text)
        kind = ResumeKind(record["kind"])
        return ResumeRequest(str(record["database"]), str(record["table"]), name, store, kind, stored.version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(
            f"{store.where(name)} cannot be read ({error}); remove this record, and repeat the operator's request for the table"
        ) from error


def request_new_start(destination_dir: Path, epoch: int) -> None:
    """Requests a new start for an engine that lost its position: the engine starts at the source's current position and re-snapshots all
    tables. `epoch` is the ledger's epoch. Raises MetaError if the record store does not answer.
    """
    record_store(destination_dir).put(BEGIN_FILE, json.dumps({"kind": "begin", "epoch": epoch}))


def new_start_requested(destination_dir: Path, epoch: int) -> bool:
    """Returns whether an operator has requested a new start of the engine (`request_new_start`) in the ledger's epoch `epoch`. A new start
    begins an epoch. So a request of an earlier epoch was executed before, even if a crash prevented its removal. Raises MetaError if the
    record store does not answer.
    """
    text = record_store(destination_dir).get(BEGIN_FILE)
    if text is None:
        return False
    try:
        return int(json.loads(text).get("epoch", epoch)) >= epoch
    except (ValueError, TypeError, AttributeError):
        return True  # Earlier versions of Sluice did not read the text: any text was a request.


def begin_done(destination_dir: Path) -> None:
    """Removes the request for a new start (`request_new_start`). Called after the request was executed or withdrawn. Raises MetaError if
    the record store does not answer.
    """
    record_store(destination_dir).remove(BEGIN_FILE)
