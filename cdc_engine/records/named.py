"""Small records of a destination that its next engine needs: files in its directory, or records next to a ledger that several hosts share.

Notes of an engine for later and requests of an operator go through here, so that a host that takes over finds them without the directory
of the previous host. The newest record of a name counts. Used by the packages that own the records; only they know the names.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cdc_engine.contracts import LedgerLocation
from cdc_engine.durable_files import keep_file, sync
from cdc_engine.errors import MetaError, StaleWriteError
from cdc_engine.records.contract import NOT_THERE, RecordStore, StoredRecord
from cdc_engine.records.location import as_location, shared_record_store

NAME = "text"  # prefix of the names in the record store: text-<folder>-<digest of the name>
TRIES_MAX = 20


class NamedRecords(Protocol):
    """Records by name, such as "filters.json" or "forget-requests/7.json". All methods raise MetaError if a record cannot be read or
    written.
    """

    def read(self, name: str) -> str | None:
        """Returns the newest text; None if there is none."""

    def keep(self, name: str, text: str) -> None:
        """Writes or replaces the record. It is durable when this returns."""

    def remove(self, name: str) -> bool:
        """Removes the record. Returns whether it existed."""

    def all(self, folder: str) -> Mapping[str, str]:
        """Returns the text of every record in a folder, by name."""

    def where(self, name: str) -> str:
        """Returns where a person finds the record."""


def named_records(destination_dir: Path) -> NamedRecords:
    """Returns the records of a destination. Raises ConfigurationError, or MetaError if the store does not answer."""
    place = as_location(destination_dir)
    return _shared(place, os.getpid()) if place.is_shared else TextFiles(destination_dir)


class TextFiles:
    """Records as files in the destination's directory. Implements `NamedRecords`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise MetaError(f"{self.where(name)} cannot be read ({error})") from error

    def keep(self, name: str, text: str) -> None:
        keep_file(self._folder / name, text)

    def remove(self, name: str) -> bool:
        path = self._folder / name
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise MetaError(f"{path} could not be removed ({error.strerror}): give permission there") from error
        with contextlib.suppress(OSError):
            sync(path.parent)
        return True

    def all(self, folder: str) -> Mapping[str, str]:
        names = sorted(f"{folder}/{path.name}" for path in (self._folder / folder).glob("*.json"))
        return {name: text for name in names if (text := self.read(name)) is not None}

    def where(self, name: str) -> str:
        return str(self._folder / name)


class SharedNamedRecords:
    """Records in the record store of a shared ledger. Implements `NamedRecords`."""

    def __init__(self, place: LedgerLocation) -> None:
        self._documents: RecordStore = shared_record_store(place)

    def read(self, name: str) -> str | None:
        kept = self._documents.read(_key(name))
        return None if kept is None else self._text(kept)[1]

    def keep(self, name: str, text: str) -> None:
        key, record = _key(name), json.dumps({"name": name, "text": text})
        for _ in range(TRIES_MAX):
            there = self._documents.read(key)
            with contextlib.suppress(StaleWriteError):
                self._documents.write(key, record, version=there.version if there else NOT_THERE)
                return
        raise MetaError(f"others write {self.where(name)} all the time; try again")

    def remove(self, name: str) -> bool:
        key = _key(name)
        was_there = self._documents.read(key) is not None
        self._documents.remove(key)
        return was_there

    def all(self, folder: str) -> Mapping[str, str]:
        found = self._documents.read_all(f"{NAME}-{folder}-")
        return dict(sorted(self._text(kept) for kept in found.values()))

    def where(self, name: str) -> str:
        return f"{name} ({_key(name)} in {self._documents})"

    def _text(self, kept: StoredRecord) -> tuple[str, str]:
        try:
            record = json.loads(kept.text)
            return str(record["name"]), str(record["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise MetaError(
                f"a text in {self._documents} is not what Sluice writes there ({error}): {kept.text[:80]}"
            ) from error


@functools.lru_cache(maxsize=256)
def _shared(place: LedgerLocation, pid: int) -> SharedNamedRecords:  # noqa: ARG001  connections belong to one process
    return SharedNamedRecords(place)


def _key(name: str) -> str:
    folder, _, _ = name.rpartition("/")
    return f"{NAME}-{folder}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
