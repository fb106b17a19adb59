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

from cdc_engine.documents.contract import NOT_THERE
from cdc_engine.documents.places import as_place, shared_documents
from cdc_engine.documents.texts import texts_of
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError, StaleWriteError

FOLDER = "resume-requests"
BEGIN_FILE = "begin-anew.json"
TEXT = "wish-"  # followed by a digest of the table's name
TRIES_MAX = 20


class Wish(enum.StrEnum):
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
    wish: Wish = Wish.RESUME
    text: str = ""

    def done(self) -> None:
        """Removes the request after it was handled. Raises MetaError."""
        if self.text:
            shared_documents(as_place(self.path)).remove(self.text)
        else:
            self.path.unlink(missing_ok=True)

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def request(destination_dir: Path, database: str, table: str, wish: Wish = Wish.RESUME) -> None:
    """Requests something of the destination's engine, now or when it runs next. The newest request for a table counts. Raises MetaError."""
    digest = hashlib.sha256(json.dumps([database, table]).encode()).hexdigest()[:32]
    text = json.dumps({"database": database, "table": table, "wish": wish})
    place = as_place(destination_dir)
    if not place.is_apart:
        keep_file(destination_dir / FOLDER / f"{digest}.json", text)
        return
    documents, name = shared_documents(place), f"{TEXT}{digest}"
    for _ in range(TRIES_MAX):
        there = documents.read(name)
        with contextlib.suppress(StaleWriteError):
            documents.write(name, text, version=there.version if there else NOT_THERE)
            return
    raise MetaError(f"others write {name} in {documents} all the time; ask again")


def requests(destination_dir: Path) -> tuple[ResumeRequest, ...]:
    """Returns the waiting requests. Raises MetaError when one cannot be understood."""
    place = as_place(destination_dir)
    files = sorted((destination_dir / FOLDER).glob("*.json"))
    texts = shared_documents(place).read_all(TEXT) if place.is_apart else {}
    return (
        *(_wish(path, str(path), path.read_text) for path in files),
        *(_wish(destination_dir, name, lambda kept=kept: kept.text, name) for name, kept in sorted(texts.items())),  # type: ignore[misc]
    )


def _wish(path: Path, where: str, read: Callable[[], str], text: str = "") -> ResumeRequest:
    try:
        record = json.loads(read())
        wish = Wish(record.get("wish", Wish.RESUME))
        return ResumeRequest(str(record["database"]), str(record["table"]), path, wish, text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(f"{where} cannot be read ({error}); remove it and ask anew") from error


def ask_begin(destination_dir: Path) -> None:
    """Requests that the engine, whose position is lost, begins at the source's current position and re-snapshots all tables. Raises
    MetaError.
    """
    texts_of(destination_dir).keep(BEGIN_FILE, json.dumps({"wish": "begin"}))


def begin_asked(destination_dir: Path) -> bool:
    """Returns whether `ask_begin` was called and `begin_done` was not. Raises MetaError."""
    return texts_of(destination_dir).read(BEGIN_FILE) is not None


def begin_done(destination_dir: Path) -> None:
    """Removes the request of `ask_begin`: it is done or not wanted any more. Raises MetaError."""
    texts_of(destination_dir).remove(BEGIN_FILE)
