"""Reads the manifest of a staged batch, and checks whether the batch's files are complete. Used by the engine; runs have their own reader
(spark_jobs).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sluice.batch_manifest.file import MANIFEST_FILE, ManifestError, read_manifest_json
from sluice.batch_manifest.values import Manifest
from sluice.cdc_engine.errors import StagingError


def read_manifest(directory: Path) -> Manifest:
    """Returns the manifest in the directory of a staged batch. Raises StagingError if the manifest is missing or cannot be parsed."""
    path = directory / MANIFEST_FILE
    try:
        return read_manifest_json(path.read_bytes())
    except FileNotFoundError:
        raise StagingError(f"{directory} has no {MANIFEST_FILE}, so the batch was not staged to its end") from None
    except (OSError, ManifestError) as error:
        raise StagingError(f"{path} cannot be read as a manifest: {error}") from error


def is_whole(directory: Path) -> bool:
    """Returns whether a run can merge the staged batch: the manifest exists, all files in it exist, and no file has another size than the
    manifest states.
    """
    try:
        manifest = read_manifest(directory)
    except StagingError:
        return False
    return has_all(manifest, lambda file: _size_bytes(directory / file))


def has_all(manifest: Manifest, size_bytes: Callable[[str], int]) -> bool:
    """Returns whether all files in the manifest exist, and have the sizes that the manifest states. The manifest states sizes only for the
    files with rows and for the quarantine, not for the files of change logs and of cascades. `size_bytes` returns the size of a file, or -1
    if the file does not exist.
    """
    changes = [segment for table in manifest.tables for segment in table.changes]
    sizes = {segment.file.name: segment.size_bytes for segment in changes}
    if manifest.quarantine is not None:
        sizes[manifest.quarantine.file.name] = manifest.quarantine.size_bytes
    others = [segment.log for segment in changes if segment.log]
    others += [table.positions.name for table in manifest.tables if table.positions]
    others += [events.file.name for events in manifest.cascades]
    if any(size_bytes(file) < 0 for file in others):
        return False
    return all(size_bytes(file) == wanted for file, wanted in sizes.items())


def _size_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1
