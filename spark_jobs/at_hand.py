"""A staged batch that is in an object store, brought to where a run reads by itself: footers, logs, what cascades and quarantine hold.

Spark and its tasks read the store. `run_batch` calls it, under the run lock; the host that staged the batch has its files already.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from object_stores.errors import StoreError
from object_stores.folder import StoreFolder
from spark_jobs.errors import SparkJobError, StagedBatchError
from spark_jobs.staged_batch import MANIFEST

FETCHED = ".fetched"


@contextlib.contextmanager
def at_hand(batch_dir: Path, stored: str, storage_options: Mapping[str, str]) -> Iterator[Path]:
    """A local folder with the files of the batch; `batch_dir` itself where it has them. `stored`: their URL, empty: they are local only.

    Raises StagedBatchError where the store has no such batch, SparkJobError where it does not answer.
    """
    if not stored:
        yield batch_dir
        return
    try:
        folder = StoreFolder(stored, storage_options)
        manifest, sizes = folder.read(MANIFEST), folder.sizes()
        if manifest is None:
            raise StagedBatchError(
                f"{stored}/{MANIFEST} does not exist: the batch was never staged whole, or was removed"
            )
        here = batch_dir if _read(batch_dir / MANIFEST) == manifest else batch_dir.with_name(batch_dir.name + FETCHED)
        _forget_others(batch_dir)
        _bring(folder, sizes, here)
    except (StoreError, OSError) as error:
        raise SparkJobError(f"the batch could not be brought from its store: {error}; it is tried again") from None
    _keep_time(here / MANIFEST, manifest)
    try:
        yield here
    finally:
        if here != batch_dir:
            shutil.rmtree(here, ignore_errors=True)


def _bring(folder: StoreFolder, sizes: Mapping[str, int], here: Path) -> None:
    """What runs derived of the batch is taken from the store alone: another host's run may have been the last."""
    for path in here.iterdir() if here.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path)
    folder.get([name for name, size in sizes.items() if not _has(here / name, size)], here)


def _forget_others(batch_dir: Path) -> None:
    """What a run that was killed on this host brought."""
    for left in batch_dir.parent.glob(f"*{FETCHED}"):
        shutil.rmtree(left, ignore_errors=True)


def _keep_time(path: Path, manifest: bytes) -> None:
    """The file is as old as the batch: since then commits of its runs may not be on disk yet."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        staged_at = int(json.loads(manifest)["staged_at_us"]) / 1e6
        os.utime(path, (staged_at, min(staged_at, path.stat().st_mtime)))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _has(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes
