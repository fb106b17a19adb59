"""An operator's wish that a consumer beside the lake be forgotten: a file each, named by its number. `acts` writes, the engine removes."""

from __future__ import annotations

import json
from pathlib import Path

from cdc_engine.durable_files import keep_file

FOLDER = "forget-requests"


def ask_forget(destination_dir: Path, client_id: int) -> None:
    """Asks the engine of the destination, now or when it runs. Raises MetaError."""
    keep_file(destination_dir / FOLDER / f"{client_id}.json", json.dumps({"client_id": client_id}))


def forget_asked(destination_dir: Path) -> tuple[int, ...]:
    """The numbers of those that are to be forgotten."""
    return tuple(sorted(int(path.stem) for path in (destination_dir / FOLDER).glob("*.json") if path.stem.isdigit()))


def forget_done(destination_dir: Path, client_id: int) -> None:
    (destination_dir / FOLDER / f"{client_id}.json").unlink(missing_ok=True)
