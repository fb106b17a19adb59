"""An operator's wish that a stopped table go on: a file each, beside the ledger. `acts` writes them, the running engine deals with them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError

FOLDER = "resume-requests"


@dataclasses.dataclass(frozen=True)
class ResumeRequest:
    """A table that is to go on. `path`: the file that says so, removed when it has been dealt with."""

    database: str
    table: str
    path: Path


def request(destination_dir: Path, database: str, table: str) -> None:
    """Asks the engine of the destination to take a stopped table up again, now or when it runs. Raises MetaError."""
    folder = destination_dir / FOLDER
    path = folder / f"{hashlib.sha256(json.dumps([database, table]).encode()).hexdigest()[:32]}.json"
    keep_file(path, json.dumps({"database": database, "table": table}))


def requests(destination_dir: Path) -> tuple[ResumeRequest, ...]:
    """The requests that wait. Raises MetaError when one cannot be understood."""
    found = []
    for path in sorted((destination_dir / FOLDER).glob("*.json")):
        try:
            record = json.loads(path.read_text())
            found.append(ResumeRequest(str(record["database"]), str(record["table"]), path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MetaError(f"{path} cannot be read ({error}); remove it and ask anew") from error
    return tuple(found)
