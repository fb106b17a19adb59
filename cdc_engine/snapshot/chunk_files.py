"""The chunks of one generation on disk: a Parquet file of rows and a record each. A chunk counts once its record is there; `work` asks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from cdc_engine.durable_files import keep_file, make_folder
from cdc_engine.errors import MetaError
from cdc_engine.snapshot.chunks import Chunk
from cdc_engine.snapshot.read import ChunkFacts


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptChunk:
    """A chunk that is whole."""

    chunk: Chunk
    facts: ChunkFacts


class ChunkFiles:
    """Of one folder, written by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> tuple[KeptChunk, ...]:
        """The chunks that are whole without a gap from the first on. What a killed process left beside them is removed: the bounds of the
        next chunk are found anew, and no row may be in two.
        """
        make_folder(self.folder)
        found = {each.chunk.number: each for each in map(_read, sorted(self.folder.glob("_*.json")))}
        whole: list[KeptChunk] = []
        while (following := found.get(len(whole) + 1)) is not None and self._follows(whole, following):
            whole.append(following)
        kept = {path for each in whole for path in (self.rows_path(each.chunk), self._record_path(each.chunk))}
        for path in self.folder.iterdir():
            if path not in kept:
                path.unlink()
        return tuple(whole)

    def _follows(self, whole: list[KeptChunk], following: KeptChunk) -> bool:
        before = whole[-1].chunk.up_to if whole else ()
        is_next = not whole or (bool(before) and following.chunk.after == before)
        return is_next and self.rows_path(following.chunk).is_file()

    def clear(self) -> None:
        """Nothing of it counts any more."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            path.unlink()

    def rows_path(self, chunk: Chunk) -> Path:
        return self.folder / f"{chunk.number:06d}.parquet"

    def keep(self, chunk: Chunk, facts: ChunkFacts) -> None:
        """The chunk's file is whole and on disk. Raises MetaError."""
        record = {"chunk": dataclasses.asdict(chunk), "facts": dataclasses.asdict(facts)}
        keep_file(self._record_path(chunk), json.dumps(record))

    def _record_path(self, chunk: Chunk) -> Path:
        return self.folder / f"_{chunk.number:06d}.json"  # Spark passes over names that begin so


def is_complete(whole: tuple[KeptChunk, ...]) -> bool:
    """Whether the chunks reach the table's end."""
    return bool(whole) and not whole[-1].chunk.up_to


def _read(path: Path) -> KeptChunk:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        chunk = record["chunk"]
        bounds = {"after": tuple(chunk["after"]), "up_to": tuple(chunk["up_to"])}
        return KeptChunk(chunk=Chunk(**{**chunk, **bounds}), facts=ChunkFacts(**record["facts"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaError(f"{path} cannot be read ({error}); remove it, the chunk is read again") from error
