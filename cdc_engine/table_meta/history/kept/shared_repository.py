"""Stores the schema history in a record store that is not files: SQL or ZooKeeper, which several hosts can share, or memory.

The schema history is divided into chunks of some hundred kilobytes, because a node of ZooKeeper has at most a megabyte. Chunks are named
`schema-<generation>-<number>`. The record `schema-head` has the valid generation and its number of chunks. A writer first writes new
chunks, and then writes a new head. It passes the token of its lease with each write, so that the record store can refuse the writes of an
earlier holder of the lease. If a writer crashes before it writes the head, its chunks are not valid, and the next writer overwrites them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator

from sluice.cdc_engine.errors import LeaseLostError, MetaError, StaleWriteError
from sluice.cdc_engine.records.contract import NOT_THERE, RecordStore, StoredRecord
from sluice.cdc_engine.table_meta.history.kept.repository import WITHOUT_IT, HistoryRecord, holding

FORMAT = 2
PREFIX, HEAD = "schema-", "schema-head"
CHUNK_BYTES_MAX = 400_000  # The maximum size of a chunk in bytes. Only a chunk with a single record can be larger.
TRIES_MAX = 10


@dataclasses.dataclass(frozen=True)
class RepositoryHead:
    """The record `schema-head`, which says which chunks are valid. `version` is the version of this record in the record store, or
    NOT_THERE if the record does not exist.
    """

    generation: int = 0
    chunks: int = 0
    version: int = NOT_THERE

    @property
    def counts(self) -> tuple[int, int]:
        return self.generation, self.chunks

    def to_text(self) -> str:
        what = {"what": "schema history", "format": FORMAT}
        return json.dumps({**what, "generation": self.generation, "chunks": self.chunks})

    def name(self, number: int) -> str:
        return f"{PREFIX}{self.generation:06d}-{number:08d}"


class SharedRepository:
    """The schema history of one destination in a shared record store. `token` is the token of the lease, or 0 for readers."""

    def __init__(self, store: RecordStore, token: int = 0) -> None:
        self._store, self._token = store, token
        self._counted: RepositoryHead | None = None  # The head that this process read or wrote last.
        # True if the record store did not answer the last write of the head, so that it is unknown whether the write succeeded.
        self._unsure = False

    def load(self) -> list[HistoryRecord]:
        with self._owned():
            if self._token:
                self._store.claim(HEAD, self._token)
        return self.look()

    def look(self) -> list[HistoryRecord]:
        for _ in range(TRIES_MAX):
            head = self._counted = self._head()
            found = self._store.read_all(f"{PREFIX}{head.generation:06d}-")
            chunks = [found.get(head.name(number)) for number in range(head.chunks)]
            there = [each for each in chunks if each is not None]
            if len(there) == len(chunks):
                return holding(self._records(head, there))
            if self._head() == head:
                raise MetaError(
                    f"{self} lacks {len(chunks) - len(there)} of its chunks; restore these chunks, or remove "
                    f"all records of the schema history: {WITHOUT_IT}"
                )
        raise MetaError(f"{self} was replaced during each attempt to read it; try again")

    def append(self, records: Iterable[HistoryRecord]) -> None:
        chunks = list(_chunks(records))
        if chunks:
            with self._owned():
                self._add(self._settled(), chunks)

    def replace(self, records: Iterable[HistoryRecord]) -> None:
        with self._owned():
            head = self._settled()
            self._add(dataclasses.replace(head, generation=head.generation + 1, chunks=0), list(_chunks(records)))
        counting = f"{PREFIX}{head.generation + 1:06d}-"
        # Removes only older generations, because another process may have written a newer generation while this process was suspended.
        for name in self._store.read_all(PREFIX):
            if name != HEAD and name < counting:
                self._store.remove(name)

    def __str__(self) -> str:
        return f"the schema history in {self._store}"

    def _add(self, head: RepositoryHead, chunks: list[str]) -> None:
        """Writes chunks after the `head.chunks` valid chunks of the head's generation, and makes them valid by replacing the head."""
        for number, text in enumerate(chunks, start=head.chunks):
            self._write(head.name(number), text)
        self._counted = self._headed(dataclasses.replace(head, chunks=head.chunks + len(chunks)))

    @contextlib.contextmanager
    def _owned(self) -> Iterator[None]:
        try:
            yield
        except StaleWriteError as error:
            raise LeaseLostError(
                f"{self} was written by another process, so the write of lease {self._token} is refused: this "
                "engine writes no more, and continues when it gets the lease again"
            ) from error

    def _settled(self) -> RepositoryHead:
        """Returns the stored head (the record `schema-head`). If the last write of the head succeeded although the record store did not
        answer, first undoes this write, because `append` or `replace` reported it as failed.
        """
        head = self._head()
        if self._unsure and self._counted is not None and self._counted.counts != head.counts:
            head = self._headed(dataclasses.replace(self._counted, version=head.version))
        self._unsure = False
        return head

    def _headed(self, head: RepositoryHead) -> RepositoryHead:
        """Replaces the stored head if its version is still `head.version`, and returns the new head."""
        self._unsure = True
        version = self._store.write(HEAD, head.to_text(), version=head.version, token=self._token)
        self._unsure = False
        return dataclasses.replace(head, version=version)

    def _write(self, name: str, text: str) -> None:
        """Writes a chunk. If a crashed process left an invalid chunk of the same name, replaces that chunk."""
        there = self._store.read(name)
        self._store.write(name, text, version=there.version if there else NOT_THERE, token=self._token)

    def _head(self) -> RepositoryHead:
        kept = self._store.read(HEAD)
        if kept is None:
            return RepositoryHead()
        try:
            record = json.loads(kept.text)
            if record["format"] != FORMAT:
                raise ValueError(
                    f"the record has format {record['format']}, and this version of Sluice reads format {FORMAT}"
                )
            return RepositoryHead(int(record["generation"]), int(record["chunks"]), kept.version)
        except (ValueError, KeyError, TypeError) as error:
            raise MetaError(
                f"{self} cannot be read ({error}): run the version of Sluice that wrote the schema history, "
                f"restore {HEAD}, or remove all records of the schema history: {WITHOUT_IT}"
            ) from error

    def _records(self, head: RepositoryHead, chunks: list[StoredRecord]) -> Iterator[HistoryRecord]:
        for number, kept in enumerate(chunks):
            for line in kept.text.splitlines():
                try:
                    yield HistoryRecord.from_line(line.encode())
                except (ValueError, KeyError, TypeError) as error:
                    raise MetaError(
                        f"{head.name(number)} of {self} is damaged; restore this record, or remove all "
                        f"records of the schema history: {WITHOUT_IT}"
                    ) from error


def _chunks(records: Iterable[HistoryRecord]) -> Iterator[str]:
    """Joins the lines of records into chunks. A record is never divided."""
    lines: list[bytes] = []
    size = 0
    for record in records:
        line = record.to_line()
        if lines and size + len(line) > CHUNK_BYTES_MAX:
            yield b"".join(lines).decode()
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield b"".join(lines).decode()
