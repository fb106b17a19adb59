"""What a keeper of shared texts promises. `sql`, `zookeeper` and `memory` implement it; `meta` keeps the ledger in it, `ha` its leases.

A text has a version that rises with each write, and the token of the lease under which it was written. Whoever writes says which version
was read: where it is another one by now, nothing is written. So two writers can never both follow the same version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

NOTHING: Mapping[str, str] = MappingProxyType({})
NOT_THERE = 0  # the version of a text that was never written


@dataclasses.dataclass(frozen=True)
class Kept:
    """A text as it was read. `version`: from 1 on. `token`: the lease's of its writer, 0 of one without."""

    text: str
    version: int
    token: int = 0


class Documents(Protocol):
    """The texts of one destination, by name. May be used from any thread."""

    def read(self, name: str) -> Kept | None:
        """The newest version; None where the text was never written. Raises MetaError where nobody answers."""

    def read_all(self, prefix: str) -> Mapping[str, Kept]:
        """The newest version of each text whose name begins with `prefix`, by name. Raises MetaError where nobody answers."""

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        """Replaces version `version` (0: the text is not there yet), and gives the new one.

        `also`: texts for others than Sluice, written without a version in the same step; names as the keeper of the texts spells them.
        Raises StaleWriteError where the version is another one or was written under a higher token; then nothing has changed. Raises
        MetaError where nobody answers: then nobody knows.
        """

    def remove(self, name: str) -> None:
        """The text is not there any more; without effect where it is not."""

    def __str__(self) -> str:
        """Where the texts are, without a secret."""
