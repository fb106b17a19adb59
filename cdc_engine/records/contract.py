"""Defines the record store: records by name, replaced by compare-and-set. `files`, `sql`, `zookeeper` and `memory` implement it. `meta`
stores the ledger in it, `ha` its leases, and other packages their notes and requests.

A record has a version. A writer passes the version that it read; if the stored version is another one, nothing is written. So two writers
can never both follow the same version."""

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
    """A record as it was read. `version`: changes with each write of another text. `token`: that of the writer's lease; 0 for a writer
    without a lease, and in files.
    """

    text: str
    version: int
    token: int = 0


def in_folder(name: str, prefix: str) -> bool:
    """Returns whether a name consists of `prefix` and further characters without a slash."""
    return name.startswith(prefix) and "/" not in name[len(prefix) :]


class RecordStore(abc.ABC):
    """The records of one destination. May be used from any thread. Every method raises MetaError if the store does not answer.

    Names have at most 128 ASCII characters and at most one folder, such as "filters.json" or "forget-requests/7.json". No two differ only
    in upper and lower case, because some databases do not distinguish these.
    """

    @abc.abstractmethod
    def read(self, name: str) -> StoredRecord | None:
        """Returns the newest version; None if the record does not exist."""

    @abc.abstractmethod
    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        """Returns the newest version of each record whose name is `prefix` and further characters without a slash, by name.

        The caller must not change the result: a store may return the same object again if it knows that no record has changed.
        """

    @abc.abstractmethod
    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        """Replaces version `version` of the record (0: it does not exist yet) and returns the new version. The record is durable when this
        returns.

        `also`: values for readers other than Sluice, written without a version in the same step; names as ZooKeeper spells them. Raises
        StaleWriteError if the version is another one or was written under a higher token; then nothing has changed. After any other
        MetaError it is unknown whether the record was written. Files have no tokens: the kernel releases the lease of a process on this
        host only when the process ends, so there is no late writer.
        """

    def write_all(self, texts: Mapping[str, str], *, token: int = 0) -> None:
        """Writes or replaces many records, whatever they contained, each of them durably. A record that has its text already is not
        written.

        Not one step: after a crash or an error some of the records are written. Raises StaleWriteError if one is written under a higher
        token.
        """
        for name, text in texts.items():
            self.put(name, text, token)

    @abc.abstractmethod
    def remove(self, name: str, version: int | None = None) -> bool:
        """Removes the record; with `version`, only if it has this version. Returns whether it was removed."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Returns the location of the records, without a secret."""

    def where(self, name: str) -> str:
        """Returns where a person finds the record."""
        return f"{name} in {self}"

    def get(self, name: str) -> str | None:
        """Returns the text of the record; None if it does not exist."""
        found = self.read(name)
        return None if found is None else found.text

    def all(self, folder: str) -> Mapping[str, str]:
        """Returns the text of every record in a folder, by name, sorted."""
        return {name: each.text for name, each in sorted(self.read_all(f"{folder}/").items())}

    def put(self, name: str, text: str, token: int | None = None) -> None:
        """Writes or replaces the record, whatever it contained. It is durable when this returns. With the `token` of a lease, raises
        StaleWriteError if a later holder has written the record.
        """
        self._change(name, lambda _: text, token)

    def claim(self, name: str, token: int) -> StoredRecord | None:
        """Writes the record unchanged under a lease's token and returns it; None if it does not exist. After that, no late write of an
        earlier holder succeeds. Raises StaleWriteError if a later holder has written the record.
        """
        for _ in range(TRIES_MAX):
            there = self.read(name)
            if there is None:
                return None
            if there.token > token:
                break
            with contextlib.suppress(StaleWriteError):  # The previous holder may still write, a few times at most.
                version = self.write(name, there.text, version=there.version, token=token)
                return StoredRecord(there.text, version, token)
        raise StaleWriteError(f"{self.where(name)} is written under a later lease than {token}")

    def change(self, name: str, change: Callable[[str | None], str]) -> str:
        """Applies `change` to the record's text (None: it does not exist) and returns the text that is stored then.

        `change` is called again if another process writes meanwhile. What it raises is passed on. An unchanged text is not written.
        """
        return self._change(name, change)

    def _change(self, name: str, change: Callable[[str | None], str], token: int | None = None) -> str:
        """Implements `change` and `put`."""
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
