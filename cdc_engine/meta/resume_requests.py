"""An operator's wish for one table: a file each, or a text beside a ledger that is shared where whoever wishes may not see the folder.

`acts` writes them, the running engine deals with them.
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
TEXT = "wish-"  # and a digest of the table's name
TRIES_MAX = 20


class Wish(enum.StrEnum):
    """What is to become of the table."""

    RESUME = "resume"  #: it goes on from where it stopped
    ANEW = "anew"  #: it goes on from where the stream is; its rows are read anew
    CANCEL = "cancel"  #: its snapshot ends, and it stands where it stood before


@dataclasses.dataclass(frozen=True)
class ResumeRequest:
    """What is wanted of a table. `path`: the file that says so, or the destination's directory, and `text` the text's name."""

    database: str
    table: str
    path: Path
    wish: Wish = Wish.RESUME
    text: str = ""

    def done(self) -> None:
        """It has been dealt with. Raises MetaError."""
        if self.text:
            shared_documents(as_place(self.path)).remove(self.text)
        else:
            self.path.unlink(missing_ok=True)

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def request(destination_dir: Path, database: str, table: str, wish: Wish = Wish.RESUME) -> None:
    """Asks the engine of the destination, now or when it runs; the newest wish for a table counts. Raises MetaError."""
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
    """The requests that wait. Raises MetaError when one cannot be understood."""
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
    """Asks the engine, whose position is lost, to begin where the source is and to have all rows read anew. Raises MetaError."""
    texts_of(destination_dir).keep(BEGIN_FILE, json.dumps({"wish": "begin"}))


def begin_asked(destination_dir: Path) -> bool:
    """Whether that was asked for and is not done. Raises MetaError."""
    return texts_of(destination_dir).read(BEGIN_FILE) is not None


def begin_done(destination_dir: Path) -> None:
    """It is done, or not wanted any more. Raises MetaError."""
    texts_of(destination_dir).remove(BEGIN_FILE)
