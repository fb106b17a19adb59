"""The protocol of a record store. `sql`, `zookeeper` and `memory` implement it; `meta` keeps the ledger in it, `ha` its leases.

A record has a version that rises with each write, and the token of the lease under which it was written. A writer passes the version that
it read; if the stored version is another one, nothing is written. So two writers can never both follow the same version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

NOTHING: Mapping[str, str] = MappingProxyType({})
NOT_THERE = 0  # the version of a record that was never written


@dataclasses.dataclass(frozen=True)
class StoredRecord:
    """A record as it was read. `version`: from 1 on. `token`: of the writer's lease, 0 for a writer without one."""

    text: str
    version: int
    token: int = 0


class RecordStore(Protocol):
    """The records of one destination, by name. May be used from any thread."""

    def read(self, name: str) -> StoredRecord | None:
        """Returns the newest version; None if the record was never written. Raises MetaError if the store does not answer."""

    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        """Returns the newest version of each record whose name begins with `prefix`, by name. Raises MetaError if the store does not
        answer.
        """

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        """Replaces version `version` (0: the record does not exist yet) and returns the new version.

        `also`: values for readers other than Sluice, written without a version in the same step; names as the store spells them. Raises
        StaleWriteError if the version is another one or was written under a higher token; then nothing has changed. Raises MetaError if
        the store does not answer; then it is unknown whether the record was written.
        """

    def remove(self, name: str) -> None:
        """Removes the record; does nothing if it does not exist."""

    def __str__(self) -> str:
        """Returns the location of the records, without a secret."""
