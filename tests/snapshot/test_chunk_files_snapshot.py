"""Chunks count while they follow each other without a gap: what else lies there is read again."""

from __future__ import annotations

from pathlib import Path

from cdc_engine.snapshot.chunk_files import ChunkFiles, is_complete
from cdc_engine.snapshot.chunks import Chunk
from cdc_engine.snapshot.read import ChunkFacts

FACTS = ChunkFacts(rows=1, bytes=1, received=1, seconds=0.1)


def _keep(files: ChunkFiles, number: int, after: tuple[str, ...], up_to: tuple[str, ...]) -> None:
    chunk = Chunk(number=number, after=after, up_to=up_to)
    files.rows_path(chunk).write_text("rows")
    files.keep(chunk, FACTS)


def test_a_snapshot_goes_on_after_its_last_chunk_without_a_gap(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path)
    _keep(files, 1, (), ("10",))
    _keep(files, 2, ("10",), ("20",))
    _keep(files, 4, ("30",), ())
    whole = files.prepare()
    assert [each.chunk.number for each in whole] == [1, 2]
    assert not is_complete(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "000001.parquet",
        "000002.parquet",
        "_000001.json",
        "_000002.json",
    ]


def test_chunks_of_two_readings_do_not_go_together_in_a_snapshot(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path)
    _keep(files, 1, (), ("19",))
    _keep(files, 2, ("20",), ())
    assert [each.chunk.number for each in files.prepare()] == [1]


def test_a_chunk_without_its_rows_does_not_count_in_a_snapshot(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path)
    _keep(files, 1, (), ())
    files.rows_path(Chunk(number=1)).unlink()
    assert files.prepare() == ()
    assert not list(tmp_path.iterdir())
