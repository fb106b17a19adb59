"""Tests that a snapshot that is canceled while its rows are read leaves no files and does not fail its run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.groups import advance
from sluice.cdc_engine.snapshot.read import ChunkFacts, Marks
from sluice.cdc_engine.snapshot.records import digest_of
from sluice.cdc_engine.snapshot.steps import SnapshotStep
from sluice.cdc_engine.states import SnapshotState
from tests.snapshot import test_work_snapshot as work_on_world
from tests.snapshot.test_work_snapshot import NAME, World, state

world = work_on_world.world


class CanceledReader(work_on_world._Reader):
    """Reads rows. The engine cancels the snapshot after the first chunk has begun. `makes_folder` tells whether the folder of the chunk is
    removed before or after the file is created in it.
    """

    def __init__(self, world: World, *, makes_folder: bool) -> None:
        super().__init__(world)
        self._makes_folder = makes_folder

    def read(self, chunk: Chunk, path: Path, marks: Marks | None = None) -> ChunkFacts:
        records = self._world.records
        records.update(NAME, lambda now: now.canceled() if now.is_open else now)
        records.sweep(NAME)
        if self._makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        return super().read(chunk, path, marks)


@pytest.mark.found
@pytest.mark.parametrize("makes_folder", [True, False])
def test_a_snapshot_that_is_canceled_while_a_chunk_is_read_leaves_no_files(world: World, makes_folder: bool) -> None:
    """Defect 1067: the files of chunks that were read when an operator canceled the snapshot stayed on the disk or in the store until the
    next snapshot of the table. If the engine removed the folder during a write, the run failed with an error about a missing file.
    """
    reader: Any = CanceledReader(world, makes_folder=makes_folder)
    dependencies = dataclasses.replace(world.dependencies(), reader=lambda *_: reader)
    assert advance(NAME, dependencies).step in {SnapshotStep.WAIT, SnapshotStep.NOTHING}
    assert state(world).state == SnapshotState.CANCELED
    home = world.records.chunks(state(world)).folder.parent
    assert home.name == digest_of(NAME)
    assert not home.exists() or not list(home.iterdir())
    chunks = world.records.chunks(state(world))
    assert not chunks.url or not chunks.names()
