"""Tests that a snapshot continues after the last chunk that follows the previous chunks without a gap. The files of all other chunks are
removed, and their rows are read again.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.snapshot.chunk_files import ChunkFiles, ChunksInFolder, chunks_in, is_complete
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.read import ChunkFacts
from sluice.object_stores.stored_files import StoredFiles

FACTS = ChunkFacts(rows=1, bytes=1, received=1, seconds=0.1)


def _keep(files: ChunksInFolder, number: int, after: tuple[str, ...], up_to: tuple[str, ...]) -> None:
    chunk = Chunk(number=number, after=after, up_to=up_to)
    files.rows_path(chunk).write_text("rows")
    files.keep(chunk, FACTS)


def test_a_snapshot_continues_after_its_last_chunk_without_a_gap(tmp_path: Path) -> None:
    files = ChunksInFolder(tmp_path)
    _keep(files, 1, (), ("10",))
    _keep(files, 2, ("10",), ("20",))
    _keep(files, 4, ("30",), ())
    whole = files.prepare()
    assert [each.chunk.number for each in whole] == [1, 2]
    assert not is_complete(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*(each.file for each in whole), "_000001.json", "_000002.json"]
    )


def test_chunks_of_two_readings_do_not_go_together_in_a_snapshot(tmp_path: Path) -> None:
    files = ChunksInFolder(tmp_path)
    _keep(files, 1, (), ("19",))
    _keep(files, 2, ("20",), ())
    assert [each.chunk.number for each in files.prepare()] == [1]


def test_a_chunk_without_its_rows_does_not_count_in_a_snapshot(tmp_path: Path) -> None:
    files = ChunksInFolder(tmp_path)
    _keep(files, 1, (), ())
    files.rows_path(Chunk(number=1)).unlink()
    assert files.prepare() == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.found
@pytest.mark.parametrize("kind", ["store", "folder"])
def test_a_reader_that_stood_still_leaves_no_mixture_s3(tmp_path: Path, kind: str) -> None:
    """Defect 1146: another reader took over, with other bounds. Then the first reader wrote the rows that it had read, and its record. In a
    folder that hosts share, these rows replaced those of the second reader, so that the lake could have a row twice.
    """
    url = (tmp_path / "store").as_uri() if kind == "store" else ""
    stored = StoredFiles(folder=tmp_path / "way", url=url)
    old, new = chunks_in(stored), chunks_in(stored)
    old.prepare()
    _keep_rows(old, 1, (), ("10",), 3)
    assert [each.chunk.number for each in new.prepare()] == [1]
    old.rows_path(Chunk(number=2)).parent.mkdir(exist_ok=True)
    _keep_rows(new, 2, ("10",), ("19",), 3)
    _keep_rows(new, 3, ("19",), (), 3)
    _keep_rows(old, 2, ("10",), ("20",), 3)
    assert stored.rows() == 12, "one file too many, which the publication refuses"
    assert [each.chunk.number for each in new.prepare()] == [1, 2], "the third does not follow any more"
    assert stored.rows() == 6


def _keep_rows(files: ChunkFiles, number: int, after: tuple[str, ...], up_to: tuple[str, ...], rows: int) -> None:
    chunk = Chunk(number=number, after=after, up_to=up_to)
    pq.write_table(pa.table({"n": list(range(rows))}), files.rows_path(chunk))
    files.keep(chunk, FACTS)
