"""Consumers that a destination has from its first start: those of Canal. `sluice import-canal` writes them; the first start reads them.

They begin at the destination's first position. Without this, a consumer that connects later would begin with the changes that are in
memory then.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from cdc_engine.contracts import Consumer
from cdc_engine.durable_files import replace_file
from cdc_engine.errors import MetaError
from cdc_engine.position import Position
from cdc_engine.records.location import as_location
from cdc_engine.records.named import named_records

FILE_NAME = "left-consumers.json"


@dataclasses.dataclass(frozen=True)
class LeftConsumer:
    client_id: int
    filter: str = ""


def write_left_consumers(directory: Path, consumers: Sequence[LeftConsumer]) -> Path:
    """Writes the consumers and returns the file. If the ledger is shared, also writes them to the record store, for the first host that
    starts. Raises MetaError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file, text = Path(directory) / FILE_NAME, json.dumps([dataclasses.asdict(each) for each in consumers], indent=1)
    if as_location(directory).is_shared:
        named_records(directory).keep(FILE_NAME, text)
    replace_file(file, text)
    return file


def left_consumers(directory: Path, begin: Position) -> tuple[Consumer, ...]:
    """Returns the consumers with `begin` as their cursor; an empty tuple if there is no file. Raises MetaError if it cannot be
    understood.
    """
    texts = named_records(directory)
    text = texts.read(FILE_NAME)
    if text is None:
        return ()
    try:
        found = [LeftConsumer(**each) for each in json.loads(text)]
    except (ValueError, TypeError) as error:
        where = texts.where(FILE_NAME)
        raise MetaError(f"{where} cannot be read ({error}): import Canal's folder again, or remove it") from error
    return tuple(Consumer(client_id=each.client_id, filter=each.filter, cursor=begin) for each in found)
