"""An operator's wish that a consumer beside the lake be forgotten: a text each, named by its number. `acts` writes, the engine removes."""

from __future__ import annotations

import json
from pathlib import Path

from cdc_engine.documents.texts import texts_of

FOLDER = "forget-requests"


def ask_forget(destination_dir: Path, client_id: int) -> None:
    """Asks the engine of the destination, now or when it runs. Raises MetaError."""
    texts_of(destination_dir).keep(_name(client_id), json.dumps({"client_id": client_id}))


def forget_asked(destination_dir: Path) -> tuple[int, ...]:
    """The numbers of those that are to be forgotten. Raises MetaError."""
    stems = (Path(name).stem for name in texts_of(destination_dir).all(FOLDER))
    return tuple(sorted(int(stem) for stem in stems if stem.isdigit()))


def forget_done(destination_dir: Path, client_id: int) -> None:
    """Raises MetaError."""
    texts_of(destination_dir).remove(_name(client_id))


def _name(client_id: int) -> str:
    return f"{FOLDER}/{client_id}.json"
