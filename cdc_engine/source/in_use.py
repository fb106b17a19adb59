"""Records which of a destination's sources is read: `source.json` in the destination's directory. Readers of conf/ use it (`config`).

A running engine that finds another address there than its own is replaced by one that reads that address (`instance.failover`). The file
decides nothing about continuity: wherever an engine connects, it proves that its stream continues there. If several hosts share the
ledger, the choice is stored with the ledger, and the file is a copy that each engine updates when it checks: reading conf/ needs no
connection.
"""

from __future__ import annotations

import json
from pathlib import Path

from sluice.cdc_engine.durable_files import keep_file
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.records.location import as_location, record_store

SOURCE_FILE = "source.json"


def address_in_use(directory: Path) -> str:
    """Returns host:port of the chosen source; empty if none was chosen, which means the first one. Raises ConfigurationError if the file
    cannot be parsed.
    """
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
    """Makes this address the source to read, from now on and after every start, on every host. Raises MetaError."""
    text = json.dumps({"address": address, "why": why})
    record_store(directory).put(SOURCE_FILE, text)
    if as_location(directory).is_shared:
        _copy(directory / SOURCE_FILE, text)


def address_chosen(directory: Path) -> str:
    """Returns the address that was chosen for all hosts, like `address_in_use`, and updates the local file with it. Raises
    ConfigurationError, MetaError.
    """
    if not as_location(directory).is_shared:  # The file is the record.
        return address_in_use(directory)
    text, path = record_store(directory).get(SOURCE_FILE), directory / SOURCE_FILE
    if text is None:
        path.unlink(missing_ok=True)
    else:
        _copy(path, text)
    return address_in_use(directory)


def _copy(path: Path, text: str) -> None:
    """Updates the local file if it is out of date."""
    if not path.is_file() or path.read_text() != text:
        keep_file(path, text)
