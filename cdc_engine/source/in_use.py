"""Records which of a destination's sources the engine reads: `source.json` in the destination's directory. Readers of conf/ use it
(`config`).

If the file names another address than the one that a running engine reads, `instance.failover` replaces the engine. The file decides
nothing about continuity: at every connect, the engine proves that its stream continues on the server. If several hosts share the ledger,
the choice is stored with the ledger. The file is then a copy that each engine updates when it checks, because reading conf/ must not need a
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
            f"{path} cannot be read ({error}); remove this file to read the first of `sources`"
        ) from error


def use(directory: Path, address: str, why: str) -> None:
    """Chooses the source with this address, from now on and after every start, on every host. `why`: the reason. Raises MetaError."""
    text = json.dumps({"address": address, "why": why})
    record_store(directory).put(SOURCE_FILE, text)
    if as_location(directory).is_shared:
        _copy(directory / SOURCE_FILE, text)


def address_chosen(directory: Path) -> str:
    """Returns the chosen address, like `address_in_use`, after it updated the local file with the choice of all hosts. Raises
    ConfigurationError, MetaError.
    """
    if not as_location(directory).is_shared:  # Without a shared ledger, the file is the record itself.
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
