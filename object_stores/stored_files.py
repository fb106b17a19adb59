"""Accesses the Parquet files of one directory, on disk or in an object store. The directory has either the rows that a table's snapshot has
read, or the table's changes that are buffered during the snapshot.

The snapshot's run writes the files with rows, and merge runs write the files with buffered changes. Other runs read the files, possibly on
other hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.object_stores.errors import StoreError
from sluice.object_stores.files import opened
from sluice.object_stores.folder import PARALLEL, StoreFolder

SUFFIX = ".parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFiles:
    """A directory of Parquet files. `url` is its URL in an object store, or empty if the files are in `folder` on disk. If there is a URL,
    `folder` is the local directory for files that are being uploaded or downloaded. `options` are `storage_options` with secrets resolved.
    Every method raises StoreError if the store fails, and OSError if the disk fails.
    """

    folder: Path
    url: str = ""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def names(self) -> list[str]:
        """Returns the names of the Parquet files, sorted."""
        if not self.url:
            return sorted(path.name for path in self.folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))
        return list(self.sizes())

    def opened(self, name: str) -> Any:
        """Returns one of the files in a form that pyarrow can read: an open file of the store, or a local path."""
        return opened(f"{self.url}/{name}", self.options) if self.url else self.folder / name

    def schema(self, name: str) -> pa.Schema:
        return pq.read_schema(self.opened(name))

    def footers(self) -> dict[str, pq.FileMetaData]:
        """Returns the Parquet footer of each file, by name."""
        names = self.names()
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="footers") as pool:
            return dict(zip(names, pool.map(self.footer, names), strict=True))

    def footer(self, name: str) -> pq.FileMetaData:
        return pq.read_metadata(self.opened(name))

    def rows(self) -> int:
        """Returns the number of rows in all files, according to their footers."""
        return sum(int(footer.num_rows) for footer in self.footers().values())

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each Parquet file, by name."""
        if not self.url:
            return {name: (self.folder / name).stat().st_size for name in self.names()}
        return {name: size for name, size in sorted(self.store().sizes().items()) if _is_here(name)}

    def put(self, file: Path, name: str) -> None:
        """Uploads a local file as `name`. If the upload fails, removes the part of the file that the upload may have left in the store."""
        try:
            self.store().put_file(file, name)
        except BaseException:
            # A failed upload may leave a part of the file in the store. Other processes would treat this part as the whole file.
            with contextlib.suppress(StoreError):
                self.store().remove_files([name])
            raise

    def store(self) -> StoreFolder:
        return StoreFolder(self.url, self.options)


def _is_here(name: str) -> bool:
    """Returns whether a path belongs to a Parquet file that is directly in the directory."""
    return name.endswith(SUFFIX) and "/" not in name
