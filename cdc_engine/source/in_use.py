"""Records which of a destination's sources is chosen, in `source.json` in the destination's folder. Every process that reads conf/ uses
this record to find the source.

If the file names another source than the source that a running engine reads, `instance.failover` ends the engine, and the next engine reads
the named source. At every connect, the engine checks whether the stream can continue on this source.

If several hosts share the ledger, the chosen source is stored in the ledger's record store, and `source.json` is a copy, so that reading
conf/ needs no connection to the record store. Each engine updates the copy when it checks which source is chosen.
"""

from __future__ import annotations

import json
from pathlib import Path

from sluice.cdc_engine.durable_files import keep_file
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.records.location import as_location, record_store

SOURCE_FILE = "source.json"


def address_in_use(directory: Path) -> str:
    """Returns the address (host:port) of the chosen source. Returns "" if no source was chosen, which means that the first source in conf/
    is read. Raises ConfigurationError if the file cannot be read or parsed.
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
    """Stores durably, for all hosts, that the source with this address must be read. `why` is the reason, for operators. Raises MetaError
    if the choice cannot be stored.
    """
    text = json.dumps({"address": address, "why": why})
    record_store(directory).put(SOURCE_FILE, text)
    if as_location(directory).is_shared:
        _copy(directory / SOURCE_FILE, text)


def address_chosen(directory: Path) -> str:
    """Returns the address (host:port) of the chosen source, or "" if no source was chosen. If several hosts share the ledger, first updates
    the local file from the record store. Raises ConfigurationError if the file cannot be read or parsed, and MetaError if the record store
    does not answer.
    """
    # If no other host shares the ledger, the local file is itself the record, so only the file is read.
    if not as_location(directory).is_shared:
        return address_in_use(directory)
    text, path = record_store(directory).get(SOURCE_FILE), directory / SOURCE_FILE
    if text is None:
        path.unlink(missing_ok=True)
    else:
        _copy(path, text)
    return address_in_use(directory)


def _copy(path: Path, text: str) -> None:
    """Writes the text to the local file if the file has another text."""
    if not path.is_file() or path.read_text() != text:
        keep_file(path, text)
