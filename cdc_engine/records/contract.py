"""Defines the interface of a record store. A record has a name and a text, and is replaced as a whole by compare-and-set. The ledger,
leases, snapshots and operators' requests are records.

A record has a version. A writer passes the version that it has read, and the store refuses the write if the stored version is another one.
So only one of two writers can replace a version.
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
    """A record that was read from a store. `version` changes with each write of another text. `token` is the token of the lease that the
    writer held, or 0 if the writer held no lease. In a store of files, `token` is always 0.
    """

    text: str
    version: int
    token: int = 0


def in_folder(name: str, prefix: str) -> bool:
    """Returns whether a name consists of `prefix` and further characters without a slash."""
    return name.startswith(prefix) and "/" not in name[len(prefix) :]


def written_later(record: str, token: int) -> StaleWriteError:
    """Returns the error for a process that cannot write a record, because a later holder of the lease has written it. `token` is the token
    of this process, and `record` says where the record is.
    """
    return StaleWriteError(
        f"another process, which took the lease later, has written {record} (this process has lease token {token})"
    )


class RecordStore(abc.ABC):
    """The records of one destination. Any thread may call the methods. Every method raises MetaError if the record store does not answer.

    A record's name has at most 128 ASCII characters and at most one folder, for example "filters.json" or "forget-requests/7.json". Two
    names must not differ only in letter case, because some databases ignore it.
    """

    @abc.abstractmethod
    def read(self, name: str) -> StoredRecord | None:
        """Returns the record, or None if it does not exist."""

    @abc.abstractmethod
    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        """Returns all records whose names consist of `prefix` and further characters without a slash, by name.

        The caller must not change the result, because a store may return the same object again if no record has changed.
        """

    @abc.abstractmethod
    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        """Replaces the record if its stored version is `version`, and returns the new version. If `version` is NOT_THERE, creates the
        record, which must not exist yet. When the call returns, the record is durable.

        `also` has values for programs other than Sluice, by their paths in ZooKeeper. These values are written in the same step as the
        record, and their versions are not compared. Raises StaleWriteError and changes nothing if the stored version is another one, or was
        written with a higher token. After any other MetaError, it is unknown whether the record was written.

        A store of files ignores tokens. Its lease is a lock of the operating system, which is released only when the process ends. So an
        earlier holder of the lease cannot write any more.
        """

    def write_all(self, texts: Mapping[str, str], *, token: int = 0) -> None:
        """Creates or replaces many records durably, whatever their stored versions are. Does not write a record that has the right text
        already.

        Each record is a separate write: after a crash or an error, only some of the records may be written. Raises StaleWriteError if a
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
        """Returns where an operator finds the record, for messages."""
        return f"{name} in {self}"

    def get(self, name: str) -> str | None:
        """Returns the text of the record, or None if it does not exist."""
        found = self.read(name)
        return None if found is None else found.text

    def all(self, folder: str) -> Mapping[str, str]:
        """Returns the texts of all records in a folder, by name, in the order of the names."""
        return {name: each.text for name, each in sorted(self.read_all(f"{folder}/").items())}

    def put(self, name: str, text: str, token: int | None = None) -> None:
        """Creates or replaces the record durably, whatever its stored version is. With `token`, raises StaleWriteError if a later holder of
        the lease has written the record.
        """
        self._change(name, lambda _: text, token)

    def claim(self, name: str, token: int) -> StoredRecord | None:
        """Writes an existing record with the same text and the token of a lease, so that earlier holders of the lease cannot write the
        record any more. Returns the record, or None if it does not exist. Raises StaleWriteError if a later holder has written the record.
        """
        for _ in range(TRIES_MAX):
            there = self.read(name)
            if there is None:
                return None
            if there.token > token:
                break
            # Tries again if the write fails, because the previous holder of the lease has written the record since `read`. The write soon
            # succeeds, because the previous holder notices that it lost the lease.
            with contextlib.suppress(StaleWriteError):
                version = self.write(name, there.text, version=there.version, token=token)
                return StoredRecord(there.text, version, token)
        raise written_later(self.where(name), token)

    def change(self, name: str, change: Callable[[str | None], str]) -> str:
        """Replaces the record's text by `change(text)`, and returns the new text. `change` gets None if the record does not exist. Does not
        write an unchanged text.

        If another process writes the record between the read and the write, calls `change` again with the newer text. Raises the exceptions
        of `change`, and MetaError if other processes write the record before each of TRIES_MAX attempts.
        """
        return self._change(name, change)

    def _change(self, name: str, change: Callable[[str | None], str], token: int | None = None) -> str:
        """Implements `change` and `put`: replaces the record's text by `change(text)`, and tries again when another process has written the
        record.
        """
        for _ in range(TRIES_MAX):
            before = self.read(name)
            after = change(before.text if before else None)
            if before is not None and after == before.text:
                return after
            if before is not None and token is not None and before.token > token:
                raise written_later(self.where(name), token)
            with contextlib.suppress(StaleWriteError):
                self.write(name, after, version=before.version if before else NOT_THERE, token=token or 0)
                return after
        raise MetaError(f"other processes wrote {self.where(name)} before each attempt; try again")
