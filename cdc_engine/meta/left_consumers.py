"""Consumers that a destination has from its first moment on: those whom Canal left. Written by `sluice import-canal`, read once, at birth.

They begin where the destination does. Without this, one that comes later would begin with what is in memory then.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from cdc_engine.contracts import Consumer
from cdc_engine.documents.places import as_place
from cdc_engine.documents.texts import texts_of
from cdc_engine.durable_files import replace_file
from cdc_engine.errors import MetaError
from cdc_engine.position import Position

FILE_NAME = "left-consumers.json"


@dataclasses.dataclass(frozen=True)
class LeftConsumer:
    client_id: int
    filter: str = ""


def write_left_consumers(directory: Path, consumers: Sequence[LeftConsumer]) -> Path:
    """The file; where the ledger is shared the same is beside it, for whichever host comes first. Raises MetaError."""
    directory.mkdir(parents=True, exist_ok=True)
    file, text = Path(directory) / FILE_NAME, json.dumps([dataclasses.asdict(each) for each in consumers], indent=1)
    if as_place(directory).is_shared:
        texts_of(directory).keep(FILE_NAME, text)
    replace_file(file, text)
    return file


def left_consumers(directory: Path, begin: Position) -> tuple[Consumer, ...]:
    """None where nobody was left. Raises MetaError where the file cannot be understood."""
    texts = texts_of(directory)
    text = texts.read(FILE_NAME)
    if text is None:
        return ()
    try:
        found = [LeftConsumer(**each) for each in json.loads(text)]
    except (ValueError, TypeError) as error:
        where = texts.where(FILE_NAME)
        raise MetaError(f"{where} cannot be read ({error}): import Canal's folder again, or remove it") from error
    return tuple(Consumer(client_id=each.client_id, filter=each.filter, cursor=begin) for each in found)
