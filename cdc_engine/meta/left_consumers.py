"""Stores the consumers of Canal, which a destination has from its first start. `sluice import-canal` writes them; the first start reads
them.

The consumers begin at the destination's first position. Without the record, a consumer that connects later would begin with the changes
that are in memory then.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from sluice.cdc_engine.contracts import Consumer
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store

FILE_NAME = "left-consumers.json"


@dataclasses.dataclass(frozen=True)
class LeftConsumer:
    client_id: int
    filter: str = ""


def write_left_consumers(directory: Path, consumers: Sequence[LeftConsumer]) -> Path:
    """Writes the consumers to a file in this folder, and to the record store for the first host that starts. Returns the file. Raises
    MetaError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file, text = Path(directory) / FILE_NAME, json.dumps([dataclasses.asdict(each) for each in consumers], indent=1)
    replace_file(file, text)
    record_store(directory).put(FILE_NAME, text)
    return file


def left_consumers(directory: Path, begin: Position) -> tuple[Consumer, ...]:
    """Returns the consumers with `begin` as their cursor; an empty tuple if there is no file. Raises MetaError if it cannot be
    understood.
    """
    records = record_store(directory)
    text = records.get(FILE_NAME)
    if text is None:
        return ()
    try:
        found = [LeftConsumer(**each) for each in json.loads(text)]
    except (ValueError, TypeError) as error:
        where = records.where(FILE_NAME)
        raise MetaError(
            f"{where} cannot be read ({error}): import Canal's folder again, or remove this record"
        ) from error
    return tuple(Consumer(client_id=each.client_id, filter=each.filter, cursor=begin) for each in found)
