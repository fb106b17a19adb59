"""Requests of an operator for one table: one file per table, or a record next to a shared ledger if the requester may not see the
directory.

`acts` writes them, the running engine handles them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError, StaleWriteError
from cdc_engine.records.contract import NOT_THERE
from cdc_engine.records.location import as_location, shared_record_store
from cdc_engine.records.named import named_records

FOLDER = "resume-requests"
BEGIN_FILE = "begin-anew.json"
TEXT = "wish-"  # followed by a digest of the table's name
TRIES_MAX = 20


class ResumeKind(enum.StrEnum):
    """What an operator requests for a table."""

    RESUME = "resume"  #: it continues from its stop
    ANEW = "anew"  #: it continues at the current position of the stream, with a re-snapshot
    CANCEL = "cancel"  #: its snapshot ends, and it returns to its state before the snapshot


@dataclasses.dataclass(frozen=True)
class ResumeRequest:
    """A request for a table. `path`: the file of the request, or the destination's directory if `text` is the name of the request's
    record.
    """

    database: str
    table: str
    path: Path
    wish: ResumeKind = ResumeKind.RESUME
    text: str = ""

    def done(self) -> None:
        """Removes the request after it was handled. Raises MetaError."""
        if self.text:
            shared_record_store(as_location(self.path)).remove(self.text)
        else:
            self.path.unlink(missing_ok=True)

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def request(destination_dir: Path, database: str, table: str, wish: ResumeKind = ResumeKind.RESUME) -> None:
    """Requests something of the destination's engine, now or when it runs next. The newest request for a table counts. Raises MetaError."""
    digest = hashlib.sha256(json.dumps([database, table]).encode()).hexdigest()[:32]
    text = json.dumps({"database": database, "table": table, "wish": wish})
    place = as_location(destination_dir)
    if not place.is_apart:
        keep_file(destination_dir / FOLDER / f"{digest}.json", text)
        return
    documents, name = shared_record_store(place), f"{TEXT}{digest}"
    for _ in range(TRIES_MAX):
        there = documents.read(name)
        with contextlib.suppress(StaleWriteError):
            documents.write(name, text, version=there.version if there else NOT_THERE)
            return
    raise MetaError(f"others write {name} in {documents} continuously; try again")


def requests(destination_dir: Path) -> tuple[ResumeRequest, ...]:
    """Returns the waiting requests. Raises MetaError when one cannot be understood."""
    place = as_location(destination_dir)
    files = sorted((destination_dir / FOLDER).glob("*.json"))
    texts = shared_record_store(place).read_all(TEXT) if place.is_apart else {}
    return (
        *(_wish(path, str(path), path.read_text) for path in files),
        *(_wish(destination_dir, name, lambda kept=kept: kept.text, name) for name, kept in sorted(texts.items())),  # type: ignore[misc]
    )


def _wish(path: Path, where: str, read: Callable[[], str], text: str = "") -> ResumeRequest:
    try:
        record = json.loads(read())
        wish = ResumeKind(record.get("wish", ResumeKind.RESUME))
        return ResumeRequest(str(record["database"]), str(record["table"]), path, wish, text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(f"{where} cannot be read ({error}); remove it and request the resume again") from error


def request_new_start(destination_dir: Path) -> None:
    """Requests that the engine, whose position is lost, begins at the source's current position and re-snapshots all tables. Raises
    MetaError.
    """
    named_records(destination_dir).keep(BEGIN_FILE, json.dumps({"wish": "begin"}))


def new_start_requested(destination_dir: Path) -> bool:
    """Returns whether `request_new_start` was called and `begin_done` was not. Raises MetaError."""
    return named_records(destination_dir).read(BEGIN_FILE) is not None


def begin_done(destination_dir: Path) -> None:
    """Removes the request of `request_new_start`: it is done or not wanted any more. Raises MetaError."""
    named_records(destination_dir).remove(BEGIN_FILE)
