"""Gives runs access to a file of the engine's folder: the record of the source in use. Runs on hosts that do not have this folder get a
copy from the object store of the staged batches.

Copies exist only if the ledger is shared and staged batches are in an object store (`LedgerLocation.is_apart`). The engine then uploads a
file whenever it writes the file, and a run downloads the files that it reads. Runs on the engine's host use the copies too.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.errors import NotSharedError
from sluice.cdc_engine.records.location import as_location
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.options import resolved

DOWNLOADED = "downloaded"  # The folder for downloaded files, in the destination's folder.


def share(destination_dir: Path, name: str, content: bytes) -> None:
    """Uploads a file of the engine's folder, so that runs on other hosts can download it. Does nothing if `is_apart` is False, because runs
    then read the file in the engine's folder itself. Raises NotSharedError if the upload fails.
    """
    location = as_location(destination_dir)
    if location.is_apart:
        with _translated(name):
            _folder(location).write(name, content)


def local_copy(destination_dir: Path, name: str) -> Path:
    """Returns the path of a local file with the current content of the file `name`, for a run. If the engine has not written the file, no
    file exists at the path. Raises NotSharedError if the download fails.
    """
    location = as_location(destination_dir)
    if not location.is_apart:
        return destination_dir / name
    with _translated(name):
        content = _folder(location).read(name)
    if content is None:
        return destination_dir / name
    path = destination_dir / DOWNLOADED / name
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Writes to a temporary file, because other runs on this host may download the same file at the same time.
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary:
            temporary.write(content)
        Path(temporary.name).replace(path)
    return path


def _folder(location: LedgerLocation) -> StoreFolder:
    return StoreFolder(location.sibling_url("shared"), resolved(dict(location.storage_options)))


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise NotSharedError(
            f"the object store from which runs read {name} cannot be used now: {error}; Sluice tries again"
        ) from None
