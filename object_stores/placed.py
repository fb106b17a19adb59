"""Parquet files of one folder, on the disk or in a store: what was read and held of a table whose snapshot is under way.

The run that reads a table writes them, the runs that merge and publish read them, which may be on other hosts.
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

from object_stores.errors import StoreError
from object_stores.files import opened
from object_stores.folder import PARALLEL, StoreFolder

SUFFIX = ".parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedFiles:
    """`url`: of the folder in a store; empty: `folder` has the files, which else is for what is on its way. `options`: `storage_options`
    with their values. Every method raises StoreError where a store fails, OSError where a disk does.
    """

    folder: Path
    url: str = ""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def names(self) -> list[str]:
        """Of the Parquet files, in order."""
        if not self.url:
            return sorted(path.name for path in self.folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))
        return sorted(name for name in self.store().sizes() if name.endswith(SUFFIX) and "/" not in name)

    def opened(self, name: str) -> Any:
        """What pyarrow reads a file of them from."""
        return opened(f"{self.url}/{name}", self.options) if self.url else self.folder / name

    def schema(self, name: str) -> pa.Schema:
        return pq.read_schema(self.opened(name))

    def rows(self) -> int:
        """Of all files."""
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="footers") as pool:
            return sum(pool.map(lambda name: int(pq.read_metadata(self.opened(name)).num_rows), self.names()))

    def put(self, file: Path, name: str) -> None:
        """A file of the disk into the store, under another name. Whoever lists the store finds it whole or not at all."""
        try:
            self.store().put_file(file, name)
        except BaseException:
            with contextlib.suppress(StoreError):  # a file that could not be read to its end may be there in part
                self.store().remove_files([name])
            raise

    def store(self) -> StoreFolder:
        return StoreFolder(self.url, self.options)
