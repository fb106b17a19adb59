"""Which of a destination's sources is read: `source.json` beside its other files. Whoever reads conf/ goes by it (`config`).

A running engine that finds another address there than its own gives its place to one that reads that (`instance.failover`). The file
decides nothing about continuity: wherever an engine connects, it proves that its stream goes on there. Where several hosts share the ledger
the choice is beside that, and the file is a copy, brought by each engine that looks: reading conf/ asks nobody.
"""

from __future__ import annotations

import json
from pathlib import Path

from cdc_engine.documents.places import as_place
from cdc_engine.documents.texts import texts_of
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import ConfigurationError

SOURCE_FILE = "source.json"


def address_in_use(directory: Path) -> str:
    """host:port; empty where nobody has chosen, which means the first. Raises ConfigurationError where the file cannot be understood."""
    path = directory / SOURCE_FILE
    try:
        return str(json.loads(path.read_text())["address"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}); remove it to read the first source of the list"
        ) from error


def use(directory: Path, address: str, why: str) -> None:
    """From now on, and after every start, this one is read, on every host. Raises MetaError."""
    text = json.dumps({"address": address, "why": why})
    texts_of(directory).keep(SOURCE_FILE, text)
    if as_place(directory).is_shared:
        keep_file(directory / SOURCE_FILE, text)


def address_chosen(directory: Path) -> str:
    """As `address_in_use`, by what counts for all hosts, which is brought to the file here. Raises ConfigurationError, MetaError."""
    if as_place(directory).is_shared:
        text, path = texts_of(directory).read(SOURCE_FILE), directory / SOURCE_FILE
        if text is None:
            path.unlink(missing_ok=True)
        elif not path.is_file() or path.read_text() != text:
            keep_file(path, text)
    return address_in_use(directory)
