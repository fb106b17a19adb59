"""Stores the chunks of a snapshot: for each chunk a Parquet file with its rows, and then a record that marks the chunk as complete. Each
time a snapshot must read all its rows again, a new generation of chunks begins. Used by `work`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from sluice.cdc_engine.durable_files import keep_file, make_folder
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.read import ChunkFacts
from sluice.object_stores.errors import StoreError
from sluice.object_stores.stored_files import StoredFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptChunk:
    """A chunk that was read completely. `file` is the name of the Parquet file with its rows. The name is empty until `ChunkFiles.prepare`
    returns the chunk.
    """

    chunk: Chunk
    facts: ChunkFacts
    file: str = ""


class ChunkFiles(Protocol):
    """The chunks of one generation. A new generation begins each time a snapshot must read all its rows again. Only one process at a time
    works on the chunks, but a process that hung may still write files after another process has replaced it. Every method raises MetaError
    if the files cannot be used.
    """

    def prepare(self) -> tuple[KeptChunk, ...]:
        """Returns the complete chunks from the first one up to the first gap. Removes all other files, which a killed process left. Chunks
        after the gap get new bounds, so their old files may contain rows that are also in a new chunk.
        """

    def clear(self) -> None:
        """Removes all chunks."""

    def rows_path(self, chunk: Chunk) -> Path:
        """Returns the path to which the chunk's rows are written."""

    def keep(self, chunk: Chunk, facts: ChunkFacts) -> None:
        """Records a chunk whose file is complete and on disk."""


class ChunksInFolder:
    """The chunks of one generation in a folder (`ChunkFiles`). Several hosts with a shared ledger may use the same folder. As in
    `ChunksInStore`, each process uses its own file names, because a process that hung may still write files after another process has
    replaced it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._mine = folder, _own_suffix()

    def prepare(self) -> tuple[KeptChunk, ...]:
        make_folder(self.folder)
        found = [_read(path) for path in sorted(self.folder.glob("_*.json"))]
        whole = _without_gap(found, lambda file: (self.folder / file).is_file())
        kept = _files_of(whole)
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)
        return whole

    def clear(self) -> None:
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            path.unlink(missing_ok=True)

    def rows_path(self, chunk: Chunk) -> Path:
        return self.folder / _rows_name(chunk, self._mine)

    def keep(self, chunk: Chunk, facts: ChunkFacts) -> None:
        record = _record(chunk, facts, self.rows_path(chunk).name)
        keep_file(self.folder / _record_name(chunk), json.dumps(record))


class ChunksInStore:
    """The chunks of one generation in an object store (`ChunkFiles`). Rows are written to a local folder and then uploaded.

    A process that hung may still write files after another process has replaced it. So each process uses its own file names, and the record
    of a chunk names the file with the chunk's rows. The publication reads all files of the generation. If a hung process has added a second
    file of a chunk, the publication finds more rows than the snapshot read, and fails.
    """

    def __init__(self, files: StoredFiles) -> None:
        self._files, self._mine = files, _own_suffix()

    def prepare(self) -> tuple[KeptChunk, ...]:
        with self._translated():
            shutil.rmtree(self._files.folder, ignore_errors=True)
            make_folder(self._files.folder)
            store = self._files.store()
            sizes = store.sizes()
            whole = _without_gap(self._records([name for name in sizes if name.startswith("_")]), sizes.__contains__)
            store.remove_files(sizes.keys() - _files_of(whole))
        return whole

    def clear(self) -> None:
        with self._translated():
            self._files.store().remove()

    def rows_path(self, chunk: Chunk) -> Path:
        return self._files.folder / _rows_name(chunk, self._mine)

    def keep(self, chunk: Chunk, facts: ChunkFacts) -> None:
        rows = self.rows_path(chunk)
        with self._translated():
            self._files.put(rows, rows.name)
            record = json.dumps(_record(chunk, facts, rows.name))
            self._files.store().write(_record_name(chunk), record.encode())
        rows.unlink()

    def _records(self, names: Collection[str]) -> list[KeptChunk]:
        folder = Path(tempfile.mkdtemp(dir=self._files.folder))
        try:
            self._files.store().get(names, folder)
            return [_read(folder / name) for name in sorted(names)]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (StoreError, OSError) as error:
            raise MetaError(
                f"the object store with the rows of the snapshot cannot be used now: {error}; Sluice tries again"
            ) from None


def chunks_in(files: StoredFiles) -> ChunkFiles:
    """Returns the chunks of one generation, which are in a folder or in an object store. Only one process at a time may use the result."""
    return ChunksInStore(files) if files.url else ChunksInFolder(files.folder)


def is_complete(whole: tuple[KeptChunk, ...]) -> bool:
    """Returns whether the complete chunks `whole` reach the end of the table."""
    return bool(whole) and not whole[-1].chunk.up_to


def _without_gap(found: Collection[KeptChunk], is_there: Callable[[str], bool]) -> tuple[KeptChunk, ...]:
    by_number: Mapping[int, KeptChunk] = {each.chunk.number: each for each in found}
    whole: list[KeptChunk] = []
    while (following := by_number.get(len(whole) + 1)) is not None and _follows(whole, following):
        if not is_there(following.file):
            break
        whole.append(following)
    return tuple(whole)


def _follows(whole: list[KeptChunk], following: KeptChunk) -> bool:
    before = whole[-1].chunk.up_to if whole else ()
    return not whole or (bool(before) and following.chunk.after == before)


def _files_of(whole: Collection[KeptChunk]) -> set[str]:
    return {name for each in whole for name in (each.file, _record_name(each.chunk))}


def _own_suffix() -> str:
    """Returns a random suffix for the names of the files that one process writes, so that no other process writes the same files."""
    return f"-{uuid.uuid4().hex[:12]}"


def _rows_name(chunk: Chunk, suffix: str = "") -> str:
    return f"{chunk.number:06d}{suffix}.parquet"


def _record_name(chunk: Chunk) -> str:
    return f"_{chunk.number:06d}.json"  # The underscore at the beginning makes Spark ignore the file.


def _record(chunk: Chunk, facts: ChunkFacts, file: str) -> dict[str, object]:
    return {"chunk": dataclasses.asdict(chunk), "facts": dataclasses.asdict(facts), "file": file}


def _read(path: Path) -> KeptChunk:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        said = record["chunk"]
        chunk = Chunk(**{**said, "after": tuple(said["after"]), "up_to": tuple(said["up_to"])})
        # Records of chunks in folders that earlier versions of Sluice wrote do not name the file.
        file = str(record.get("file") or _rows_name(chunk))
        return KeptChunk(chunk=chunk, facts=ChunkFacts(**record["facts"]), file=file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaError(
            f"the chunk {path} cannot be read ({error}); remove this file, and Sluice reads the chunk again"
        ) from error
