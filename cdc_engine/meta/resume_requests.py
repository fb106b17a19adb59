"""An operator's wish for one table: a file each, beside the ledger. `acts` writes them, the running engine deals with them."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from pathlib import Path

from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError

FOLDER = "resume-requests"
BEGIN_FILE = "begin-anew.json"


class Wish(enum.StrEnum):
    """What is to become of the table."""

    RESUME = "resume"  #: it goes on from where it stopped
    ANEW = "anew"  #: it goes on from where the stream is; its rows are read anew
    CANCEL = "cancel"  #: its snapshot ends, and it stands where it stood before


@dataclasses.dataclass(frozen=True)
class ResumeRequest:
    """What is wanted of a table. `path`: the file that says so, removed when it has been dealt with."""

    database: str
    table: str
    path: Path
    wish: Wish = Wish.RESUME

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def request(destination_dir: Path, database: str, table: str, wish: Wish = Wish.RESUME) -> None:
    """Asks the engine of the destination, now or when it runs; the newest wish for a table counts. Raises MetaError."""
    folder = destination_dir / FOLDER
    path = folder / f"{hashlib.sha256(json.dumps([database, table]).encode()).hexdigest()[:32]}.json"
    keep_file(path, json.dumps({"database": database, "table": table, "wish": wish}))


def requests(destination_dir: Path) -> tuple[ResumeRequest, ...]:
    """The requests that wait. Raises MetaError when one cannot be understood."""
    found = []
    for path in sorted((destination_dir / FOLDER).glob("*.json")):
        try:
            record = json.loads(path.read_text())
            wish = Wish(record.get("wish", Wish.RESUME))
            found.append(ResumeRequest(str(record["database"]), str(record["table"]), path, wish))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetaError(f"{path} cannot be read ({error}); remove it and ask anew") from error
    return tuple(found)


def ask_begin(destination_dir: Path) -> None:
    """Asks the engine, whose position is lost, to begin where the source is and to have all rows read anew. Raises MetaError."""
    keep_file(destination_dir / BEGIN_FILE, json.dumps({"wish": "begin"}))


def begin_asked(destination_dir: Path) -> bool:
    """Whether that was asked for and is not done."""
    return (destination_dir / BEGIN_FILE).exists()


def begin_done(destination_dir: Path) -> None:
    """It is done, or not wanted any more."""
    (destination_dir / BEGIN_FILE).unlink(missing_ok=True)
