"""Defines the record store: records by name, each of which is replaced as a whole by compare-and-set. The ledger, leases, notes and
requests are records.

A record has a version. A writer passes the version that it has read, and nothing is written if the stored version is another one. So two
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
    """A record that was read from a store. `version` changes with each write of another text. `token` is the token of the lease under which
    the record was written; it is 0 without a lease, and always 0 in files.
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
        """Replaces the record if its stored version is `version` (0: the record does not exist yet), and returns the new version. The
        record is durable when this returns.

        `also` has values for readers other than Sluice, by their paths in ZooKeeper, which are written in the same step without a version.
        Raises StaleWriteError and changes nothing if the stored version is another one, or was written with a higher token. After any other
        MetaError, it is unknown whether the record was written.

        A store of files needs no tokens: the kernel releases the lease of a process only when the process ends, so an earlier holder of the
        lease cannot write later.
        """

    def write_all(self, texts: Mapping[str, str], *, token: int = 0) -> None:
        """Creates or replaces many records durably, whatever they contained. A record that already has its text is not written.

        The records are not written in one step: after a crash or an error, only some of them may be written. Raises StaleWriteError if a
        stored record has a higher token.
        """
        for name, text in texts.items():
            self.put(name, text, token)

    @abc.abstractmethod
    def remove(self, name: str, version: int | None = None) -> bool:
        """Removes the record. If `version` is given, removes only this version. Returns whether the record was removed."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Returns the location of the store, without secrets."""

    def where(self, name: str) -> str:
        """Returns the location at which an operator finds the record, for messages."""
        return f"{name} in {self}"

    def get(self, name: str) -> str | None:
        """Returns the text of the record, or None if it does not exist."""
        found = self.read(name)
        return None if found is None else found.text

    def all(self, folder: str) -> Mapping[str, str]:
        """Returns the texts of all records in a folder, by name, sorted."""
        return {name: each.text for name, each in sorted(self.read_all(f"{folder}/").items())}

    def put(self, name: str, text: str, token: int | None = None) -> None:
        """Creates or replaces the record, whatever it contained. The record is durable when this returns. With the `token` of a lease,
        raises StaleWriteError if a later holder of the lease has written the record.
        """
        self._change(name, lambda _: text, token)

    def claim(self, name: str, token: int) -> StoredRecord | None:
        """Writes an existing record again, unchanged but under the token of a lease, so that an earlier holder of the lease cannot write it
        any more. Returns the record, or None if it does not exist. Raises StaleWriteError if a later holder has written the record.
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
        """Replaces the record's text by `change(text)`, and returns the new text. `change` gets None if the record does not exist. An
        unchanged text is not written.

        `change` is called again if another process writes meanwhile. Its exceptions are passed on.
        """
        return self._change(name, change)

    def _change(self, name: str, change: Callable[[str | None], str], token: int | None = None) -> str:
        """Implements `change` and `put`: replaces the record's text by `change(text)`, in as many attempts as other writers make
        necessary.
        """
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
