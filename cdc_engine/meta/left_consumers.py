"""Stores the consumers that Canal had, so that a destination that replaces Canal has the same consumers from its first start. `sluice
import-canal` writes the consumers to a record, and the engine reads the record at its first start.

Each of these consumers begins at the destination's first position. A consumer without such a record begins when it first connects, at the
oldest change in the window. It would miss all earlier changes.
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
    """Saves Canal's consumers in a file in `directory`, and in the record store, where an engine on another host finds them. Returns the
    path of the file. Raises MetaError if the record store does not answer.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file, text = Path(directory) / FILE_NAME, json.dumps([dataclasses.asdict(each) for each in consumers], indent=1)
    replace_file(file, text)
    record_store(directory).put(FILE_NAME, text)
    return file


def left_consumers(directory: Path, begin: Position) -> tuple[Consumer, ...]:
    """Returns the consumers that `write_left_consumers` has saved, with `begin` as their cursor. Returns an empty tuple if none were saved.
    Raises MetaError if the record cannot be read.
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
            f"{where} cannot be read ({error}): import Canal's folder again, or remove this record. Without the record, each of Canal's "
            "consumers begins when it first connects, and misses earlier changes"
        ) from error
    return tuple(Consumer(client_id=each.client_id, filter=each.filter, cursor=begin) for each in found)
