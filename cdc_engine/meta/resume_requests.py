"""Stores operators' requests for one table, one record per table. `acts` writes them, the running engine handles and removes them."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from pathlib import Path

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.contract import RecordStore
from sluice.cdc_engine.records.location import record_store

FOLDER = "resume-requests"
BEGIN_FILE = "new-start.json"


class ResumeKind(enum.StrEnum):
    """The kinds of requests for a table."""

    RESUME = "resume"  #: The table continues from its stop.
    RE_SNAPSHOT = "re-snapshot"  #: The table continues at the stream's current position, with a re-snapshot.
    CANCEL = "cancel"  #: Its snapshot is canceled, and the table stops at the position before the snapshot.


@dataclasses.dataclass(frozen=True)
class ResumeRequest:
    """A request for a table. `record`: the request's name in `store`."""

    database: str
    table: str
    record: str
    store: RecordStore
    kind: ResumeKind = ResumeKind.RESUME

    def done(self) -> None:
        """Removes the request after it was handled. Raises MetaError."""
        self.store.remove(self.record)

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def request(destination_dir: Path, database: str, table: str, kind: ResumeKind = ResumeKind.RESUME) -> None:
    """Requests an act of the destination's engine for a table, now or when it runs next. The newest request for a table replaces earlier
    ones. Raises MetaError.
    """
    digest = hashlib.sha256(json.dumps([database, table]).encode()).hexdigest()[:32]
    text = json.dumps({"database": database, "table": table, "kind": kind})
    record_store(destination_dir).put(f"{FOLDER}/{digest}.json", text)


def requests(destination_dir: Path) -> tuple[ResumeRequest, ...]:
    """Returns the waiting requests. Raises MetaError when one cannot be understood."""
    store = record_store(destination_dir)
    return tuple(_parsed(store, name, text) for name, text in store.all(FOLDER).items())


def _parsed(store: RecordStore, name: str, text: str) -> ResumeRequest:
    try:
        record = json.loads(text)
        kind = ResumeKind(record["kind"])
        return ResumeRequest(str(record["database"]), str(record["table"]), name, store, kind)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(
            f"{store.where(name)} cannot be read ({error}); remove this record and request the resume again"
        ) from error


def request_new_start(destination_dir: Path) -> None:
    """Requests that the engine, whose position is lost, starts at the source's current position and re-snapshots all tables. Raises
    MetaError.
    """
    record_store(destination_dir).put(BEGIN_FILE, json.dumps({"kind": "begin"}))


def new_start_requested(destination_dir: Path) -> bool:
    """Returns whether a new start is requested and not done yet. Raises MetaError."""
    return record_store(destination_dir).get(BEGIN_FILE) is not None


def begin_done(destination_dir: Path) -> None:
    """Removes the request for a new start, which is done or not wanted any more. Raises MetaError."""
    record_store(destination_dir).remove(BEGIN_FILE)
