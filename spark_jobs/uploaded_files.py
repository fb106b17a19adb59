"""Makes local files of a run readable for Spark. If Spark sees the same disk, it reads them directly. Otherwise the run uploads them to
the object store of the staged batches.

Each run uploads the files that its Spark sessions need, and removes the uploads when it closes the sessions. The uploads of a killed run
are removed by a later run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.errors import SparkJobError

logger = logging.getLogger(__name__)

# An object store has no folders, so an empty file with this name stands for an empty folder. Spark ignores file names that begin with "_".
EMPTY = "_uploaded"
# Uploads that are older than this belong to runs that have certainly ended, and are removed.
LEFT_SECONDS = 24 * 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class UploadSettings:
    """Where files are uploaded. `url` is a prefix in an object store, or is empty if files are not uploaded. `storage_options` are
    deltalake's options, with secrets resolved.
    """

    url: str = ""
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)


class UploadedFiles:
    """The files that one run uploaded. The name of their folder begins with the time at which this object was created."""

    def __init__(self, settings: UploadSettings) -> None:
        self._settings = settings
        self._mine = f"{time.time():.0f}-{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count(1)
        self._begun = False

    def location(self, path: Path) -> str:
        """Returns the URL at which Spark reads a file, or the files of a folder. Uploads them first if Spark cannot read them directly.
        Raises SparkJobError if the upload fails.
        """
        if not self._settings.url:
            return path.resolve().as_uri()
        url = f"{self._settings.url}/{self._mine}/{next(self._numbers)}"
        try:
            if not self._begun:
                self._remove_old()
            self._begun = True
            return self._put(path, url)
        except (StoreError, OSError) as error:
            raise SparkJobError(f"{path.name} could not be uploaded for Spark: {error}; Sluice tries again") from None

    def url_of(self, files: StoredFiles) -> str:
        """Returns the URL at which Spark reads the rows of a snapshot, or its buffered changes. Uploads local files if Spark cannot read
        them directly. If `files` is an empty folder in an object store, writes the file EMPTY into it, because an object store has no empty
        folders. Raises SparkJobError if the upload fails.
        """
        if not files.url:
            files.folder.mkdir(parents=True, exist_ok=True)
            return self.location(files.folder)
        if not files.names():
            files.store().write(EMPTY, b"")
        return files.url

    def close(self) -> None:
        """Removes the uploads. Ignores errors, because a later run removes what is left."""
        if self._begun:
            with contextlib.suppress(StoreError):
                self._folder(self._mine).remove()

    def _put(self, path: Path, url: str) -> str:
        folder = StoreFolder(url, self._settings.storage_options)
        if path.is_dir():
            folder.write(EMPTY, b"")
            folder.put(path)
            return url
        folder.put_file(path)
        return f"{url}/{path.name}"

    def _folder(self, name: str = "") -> StoreFolder:
        return StoreFolder(f"{self._settings.url}/{name}".rstrip("/"), self._settings.storage_options)

    def _remove_old(self) -> None:
        for name in self._folder().children():
            begun = name.partition("-")[0]
            if begun.isdigit() and time.time() - int(begun) > LEFT_SECONDS:
                logger.info("removing %s, which a killed run uploaded for Spark", name)
                self._folder(name).remove()


@contextlib.contextmanager
def uploaded_files(settings: UploadSettings) -> Iterator[UploadedFiles]:
    """Yields an object that uploads files for a run. Removes the uploads when the context is closed."""
    uploaded = UploadedFiles(settings)
    try:
        yield uploaded
    finally:
        uploaded.close()
