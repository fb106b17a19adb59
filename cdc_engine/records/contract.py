"""Defines the record store: records by name, each of which is replaced as a whole by compare-and-set. The ledger, leases, notes and
requests are records.

A record has a version. A writer passes the version that it has read. If the stored version is another one, nothing is written. So two
writers can never both replace the same version.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

from sluice.cdc_engine.errors import MetaError, StaleWriteError

NOTHING: Mapping[str, str] = MappingProxyType({})
NOT_THERE = 0  # The version of a record that was never written.
TRIES_MAX = 100


@dataclasses.dataclass(frozen=True)
class StoredRecord:
    """A record that was read. `version` changes with each write of another text. `token` is the token of the writer's lease. It is 0 for a
    writer without a lease, and in files.
    """

    text: str
    version: int
    token: int = 0


def in_folder(name: str, prefix: str) -> bool:
    """Returns whether a name is `prefix` and further characters without a slash."""
    return name.startswith(prefix) and "/" not in name[len(prefix) :]


class RecordStore(abc.ABC):
    """The records of one destination. Any thread may use them. Every method raises MetaError if the store does not answer.

    A name has at most 128 ASCII characters and at most one folder, for example "filters.json" or "forget-requests/7.json". No two names
    differ only in case, because some databases ignore it.
    """

    @abc.abstractmethod
    def read(self, name: str) -> StoredRecord | None:
        """Returns the newest version, or None if the record does not exist."""

    @abc.abstractmethod
    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        """Returns the newest version of each record whose name is `prefix` and further characters without a slash.

        The caller must not change the result, because a store may return the same object again if no record has changed.
        """

    @abc.abstractmethod
    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        """Replaces version `version` of the record (0 if it does not exist yet), and returns the new version. The record is durable then.

        `also` are values for readers other than Sluice, by their paths in ZooKeeper. They are written in the same step, without a version.
        Raises StaleWriteError and changes nothing if the stored version is another one, or was written with a higher token. After any
        other MetaError, it is unknown whether the record was written.

        Files have no tokens. They need none: the kernel releases the lease of a process only when the process ends, so an earlier holder
        cannot write later.
        """

    def write_all(self, texts: Mapping[str, str], *, token: int = 0) -> None:
        """Creates or replaces many records, whatever they contained, each durably. A record that has its text already is not written.

        This is not one step: after a crash or an error, some of the records are written. Raises StaleWriteError if a record was written
        with a higher token.
        """
        for name, text in texts.items():
            self.put(name, text, token)

    @abc.abstractmethod
    def remove(self, name: str, version: int | None = None) -> bool:
        """Removes the record, but if `version` is given, only if it has this version. Returns whether it was removed."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Returns where the records are, without secrets."""

    def where(self, name: str) -> str:
        """Returns where an operator finds the record, for messages."""
        return f"{name} in {self}"

    def get(self, name: str) -> str | None:
        """Returns the text of the record, or None if it does not exist."""
        found = self.read(name)
        return None if found is None else found.text

    def all(self, folder: str) -> Mapping[str, str]:
        """Returns the texts of all records in a folder, by name, sorted."""
        return {name: each.text for name, each in sorted(self.read_all(f"{folder}/").items())}

    def put(self, name: str, text: str, token: int | None = None) -> None:
        """Creates or replaces the record, whatever it contained. It is durable when this returns. With the `token` of a lease, raises
        StaleWriteError if a later holder of the lease has written the record.
        """
        self._change(name, lambda _: text, token)

    def claim(self, name: str, token: int) -> StoredRecord | None:
        """Writes the record again under the token of a lease, unchanged, and returns it, or None if it does not exist. Afterwards, an
        earlier holder of the lease cannot write it. Raises StaleWriteError if a later holder has written it.
        """
        for _ in range(TRIES_MAX):
            there = self.read(name)
            if there is None:
                return None
            if there.token > token:
                break
            # The previous holder of the lease may still write, but only a few times.
            with contextlib.suppress(StaleWriteError):
                version = self.write(name, there.text, version=there.version, token=token)
                return StoredRecord(there.text, version, token)
        raise StaleWriteError(f"{self.where(name)} is written under a later lease than {token}")

    def change(self, name: str, change: Callable[[str | None], str]) -> str:
        """Replaces the record's text by `change(text)`, and returns the text that is stored then. `change` gets None if the record does
        not exist. An unchanged text is not written.

        `change` is called again if another process writes meanwhile. Its exceptions are passed on.
        """
        return self._change(name, change)

    def _change(self, name: str, change: Callable[[str | None], str], token: int | None = None) -> str:
        """Does what `change` and `put` describe."""
        for _ in range(TRIES_MAX):
            before = self.read(name)
            after = change(before.text if before else None)
            if before is not None and after == before.text:
                return after
            if before is not None and token is not None and before.token > token:
                raise StaleWriteError(f"{self.where(name)} is written under a later lease than {token}")
            with contextlib.suppress(StaleWriteError):
                self.write(name, after, version=before.version if before else NOT_THERE, token=token or 0)
                return after
        raise MetaError(f"other processes wrote {self.where(name)} before each attempt; try again")
