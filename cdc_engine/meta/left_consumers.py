"""Consumers that a destination has from its first moment on: those whom Canal left. Written by `sluice import-canal`, read once, at birth.

They begin where the destination does. Without this, one that comes later would begin with what is in memory then.
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

FILE_NAME = "left-consumers.json"


@dataclasses.dataclass(frozen=True)
class LeftConsumer:
    client_id: int
    filter: str = ""


def write_left_consumers(directory: Path, consumers: Sequence[LeftConsumer]) -> Path:
    """The file."""
    directory.mkdir(parents=True, exist_ok=True)
    file = Path(directory) / FILE_NAME
    replace_file(file, json.dumps([dataclasses.asdict(each) for each in consumers], indent=1))
    return file


def left_consumers(directory: Path, begin: Position) -> tuple[Consumer, ...]:
    """None where nobody was left. Raises MetaError where the file cannot be understood."""
    file = Path(directory) / FILE_NAME
    if not file.exists():
        return ()
    try:
        found = [LeftConsumer(**each) for each in json.loads(file.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise MetaError(f"{file} cannot be read ({error}): import Canal's folder again, or remove the file") from error
    return tuple(Consumer(client_id=each.client_id, filter=each.filter, cursor=begin) for each in found)
