"""Copies the records of prepared XA transactions to an object store, where an engine on another host finds them. Used by `prepared`.

A file `DIGEST.KEY.TOKEN.prepared` has the events of a transaction. DIGEST is a digest of the transaction's XA name, KEY is the order key
of its prepare, and TOKEN is the token of the lease under which the file was written. The file `DIGEST.KEY.COMMIT.committed` marks the
transaction as committed; COMMIT is the order key of the commit. If the object store does not have the record of a transaction, the record
was not completed, or the transaction has ended.

A holder of the lease writes `.prepared` files only with its own token in their names, and removes only files that it wrote or found at
its start. So an earlier holder that acts late does not remove a `.prepared` file that a later holder wrote.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.errors import NotSharedError
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.options import resolved

PREPARED, COMMITTED = ".prepared", ".committed"


@dataclasses.dataclass(frozen=True)
class CopyName:
    """The parts of a record's file name. `digest` is a digest of the transaction's XA name. `prepared` is the order key of the prepare.
    `committed` is the order key of the commit, or None before the commit.
    """

    digest: str
    prepared: int
    committed: int | None = None

    @property
    def name(self) -> str:
        if self.committed is None:
            return f"{self.digest}.{self.prepared}{PREPARED}"
        return f"{self.digest}.{self.prepared}.{self.committed}{COMMITTED}"

    @property
    def key(self) -> tuple[str, int]:
        """The digest and the order key of the prepare, which identify the record before and after its commit."""
        return self.digest, self.prepared

    @classmethod
    def of(cls, path: Path) -> CopyName:
        """Parses a file name. Raises ValueError or TypeError if the name has another form."""
        digest, *keys, _ = path.name.split(".")
        return cls(digest, *(int(key) for key in keys))


class PreparedCopies:
    """The copies of one destination's prepared transactions in the object store. `token` is the token of the lease, which is in the names
    of the files that this object writes. All methods raise NotSharedError if the object store does not answer.
    """

    def __init__(self, location: LedgerLocation, token: int = 0) -> None:
        self._location, self._token = location, token
        self._names: dict[tuple[str, int], set[str]] = {}  # The file names of each record.

    def records(self) -> list[CopyName]:
        """Returns all records that have a `.prepared` file, which contains the events. Ignores a `.committed` file without a `.prepared`
        file. Raises NotSharedError if the object store does not answer, or has a file whose name Sluice does not know.
        """
        with self._translated():
            names = sorted(self._folder().sizes())
        committed: dict[tuple[str, int], int] = {}
        self._names = {}
        try:
            for name in names:
                digest, prepared, number, kind = name.split(".")
                key = digest, int(prepared)
                self._names.setdefault(key, set()).add(name)
                if f".{kind}" == COMMITTED:
                    committed[key] = max(int(number), committed.get(key, 0))
        except ValueError:
            raise NotSharedError(
                f"{self} has the file {name}, which this version of Sluice did not write: remove that file"
            ) from None
        return [CopyName(*key, committed.get(key)) for key in self._names if self._newest(key)]

    def put(self, record: CopyName, path: Path) -> None:
        """Uploads the record of a new prepared transaction. The record is in the object store when this method returns."""
        name = f"{record.digest}.{record.prepared}.{self._token}{PREPARED}"
        with self._translated():
            self._folder().put_file(path, name)
        self._names.setdefault(record.key, set()).add(name)

    def download(self, record: CopyName, path: Path) -> None:
        """Downloads the events of a record to `path`."""
        with self._translated():
            folder = path.with_suffix(".downloaded")
            name = self._newest(record.key)
            self._folder().get([name], folder)
            (folder / name).replace(path)
            folder.rmdir()

    def mark(self, record: CopyName) -> None:
        """Marks a record as committed."""
        with self._translated():
            self._folder().write(record.name, b"committed\n")
        self._names.setdefault(record.key, set()).add(record.name)

    def unmark(self, record: CopyName) -> None:
        """Removes the file that marks a record as committed. Called if the stream will read the commit again."""
        self._remove(record, COMMITTED)

    def remove(self, record: CopyName) -> None:
        """Removes a record whose transaction has ended or will be prepared again."""
        self._remove(record, PREPARED)
        self._remove(record, COMMITTED)

    def forget(self) -> None:
        """Removes all records."""
        with self._translated():
            self._folder().remove()
        self._names = {}

    def __str__(self) -> str:
        return self._location.sibling_url("prepared")

    def _remove(self, record: CopyName, kind: str) -> None:
        """Removes the files of one kind (events, or mark of the commit) of a record. `remove` removes the events before the mark of the
        commit. In the other order, a crash between the two steps would turn a committed transaction into a prepared one.
        """
        known = self._names.get(record.key, set())
        names = {name for name in known if name.endswith(kind)}
        with self._translated():
            self._folder().remove_files(sorted(names))
        known -= names

    def _newest(self, key: tuple[str, int]) -> str:
        """Returns the name of the events file with the highest token, or an empty text if there is none."""
        names = [name for name in self._names.get(key, ()) if name.endswith(PREPARED)]
        return max(names, key=lambda name: int(name.split(".")[2]), default="")

    def _folder(self) -> StoreFolder:
        return StoreFolder(str(self), resolved(dict(self._location.storage_options)))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise NotSharedError(
                f"the object store with the prepared XA transactions cannot be used now: {error}; Sluice tries again"
            ) from None
