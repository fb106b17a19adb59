"""Files of a run that Spark is to read: as they are where both see one disk, else copies in the object store that has the staged batches.

A lane asks for each. What was lent is removed with the session, and what a killed run left, by a later one.
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

from object_stores.errors import StoreError
from object_stores.folder import StoreFolder
from object_stores.placed import PlacedFiles
from spark_jobs.errors import SparkJobError

logger = logging.getLogger(__name__)

EMPTY = "_lent"  # an empty folder is none in a store; Spark reads no file of such a name
LEFT_SECONDS = 24 * 3600.0  # what is older belongs to no run that lives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lending:
    """Where copies go. `url`: a prefix of a store; empty: there are none. `storage_options`: with their values."""

    url: str = ""
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)


class LentFiles:
    """Of one run. Folders have the time of their run in their names."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._mine = f"{time.time():.0f}-{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count(1)
        self._begun = False

    def place(self, path: Path) -> str:
        """Where Spark reads a file, or the files of a folder. Raises SparkJobError where the store does not take them."""
        if not self._lending.url:
            return path.resolve().as_uri()
        url = f"{self._lending.url}/{self._mine}/{next(self._numbers)}"
        try:
            if not self._begun:
                self._forget_left()
            self._begun = True
            return self._put(path, url)
        except (StoreError, OSError) as error:
            raise SparkJobError(
                f"{path.name} could not be put where Spark reads it: {error}; it is tried again"
            ) from None

    def placed(self, files: PlacedFiles) -> str:
        """The same of what was read or held of a table, which a store may have already."""
        if not files.url:
            files.folder.mkdir(parents=True, exist_ok=True)
            return self.place(files.folder)
        if not files.names():
            files.store().write(EMPTY, b"")
        return files.url

    def close(self) -> None:
        """Removes what was lent; what cannot be removed goes with a later run."""
        if self._begun:
            with contextlib.suppress(StoreError):
                self._folder(self._mine).remove()

    def _put(self, path: Path, url: str) -> str:
        folder = StoreFolder(url, self._lending.storage_options)
        if path.is_dir():
            folder.write(EMPTY, b"")
            folder.put(path)
            return url
        folder.put_file(path)
        return f"{url}/{path.name}"

    def _folder(self, name: str = "") -> StoreFolder:
        return StoreFolder(f"{self._lending.url}/{name}".rstrip("/"), self._lending.storage_options)

    def _forget_left(self) -> None:
        for name in self._folder().children():
            begun = name.partition("-")[0]
            if begun.isdigit() and time.time() - int(begun) > LEFT_SECONDS:
                logger.info("removing %s, which a killed run lent to Spark", name)
                self._folder(name).remove()


@contextlib.contextmanager
def lent_files(lending: Lending) -> Iterator[LentFiles]:
    """What a run lends, for as long as its lanes are open."""
    lent = LentFiles(lending)
    try:
        yield lent
    finally:
        lent.close()
