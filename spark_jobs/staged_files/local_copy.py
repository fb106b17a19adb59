"""Downloads a staged batch from its object store to a local folder. A run calls this module under the run lock.

A run needs local files, because it reads Parquet footers, change logs, cascades and quarantined values without Spark. Spark and its tasks
read the object store themselves. The host that staged the batch still has the files, and downloads nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.batch_manifest.file import MANIFEST_FILE
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.errors import SparkJobError, StagedBatchError

FETCHED = ".fetched"


@contextlib.contextmanager
def local_copy(batch_dir: Path, stored: str, storage_options: Mapping[str, str]) -> Iterator[Path]:
    """Yields a local folder with the files of the batch, and downloads the files that it lacks. The folder is `batch_dir` if it has the
    same manifest as the store. If not, it is a temporary folder next to `batch_dir`. `stored` is the URL of the batch's files, or is empty
    if the files are only local.

    Raises StagedBatchError if the store does not have the batch, and SparkJobError if the store does not answer.
    """
    if not stored:
        yield batch_dir
        return
    try:
        folder = StoreFolder(stored, storage_options)
        manifest, sizes = folder.read(MANIFEST_FILE), folder.sizes()
        if manifest is None:
            raise StagedBatchError(
                f"{stored}/{MANIFEST_FILE} does not exist: the batch was not staged to its end, or the batch "
                "was removed; Sluice stages the batch again"
            )
        here = (
            batch_dir if _read(batch_dir / MANIFEST_FILE) == manifest else batch_dir.with_name(batch_dir.name + FETCHED)
        )
        _remove_others(batch_dir)
        _download(folder, sizes, here)
    except (StoreError, OSError) as error:
        raise SparkJobError(f"the batch could not be downloaded from its store: {error}; Sluice tries again") from None
    _keep_time(here / MANIFEST_FILE, manifest)
    try:
        yield here
    finally:
        if here != batch_dir:
            shutil.rmtree(here, ignore_errors=True)


def _download(folder: StoreFolder, sizes: Mapping[str, int], here: Path) -> None:
    """Downloads the files that the local folder lacks. Subfolders have files that runs derived from the batch. The derived files are
    deleted and downloaded again, because the last run may have been on another host.
    """
    for path in here.iterdir() if here.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path)
    folder.get([name for name, size in sizes.items() if not _has(here / name, size)], here)


def _remove_others(batch_dir: Path) -> None:
    """Deletes temporary copies of batches that killed runs left on this host."""
    for left in batch_dir.parent.glob(f"*{FETCHED}"):
        shutil.rmtree(left, ignore_errors=True)


def _keep_time(path: Path, manifest: bytes) -> None:
    """Sets the manifest's modification time to the time at which the batch was staged. The merge reads this time, and syncs all commits
    since then to disk if an earlier attempt at the batch may have made commits without a sync.
    """
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
