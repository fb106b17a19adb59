"""Reads binlog files that were copied from their server, or exported by a managed database, in a folder or an object store.

A file has the name of its binlog file, followed by .gz, .tar, .tar.gz or .tgz if it is compressed. A store's credentials are read from
the environment.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.fs as pafs

from sluice.cdc_engine.errors import ConfigurationError, PositionLostError, SourceConnectionError

_NAME = re.compile(r"(?P<log>[^/]+\.\d{6,})(?P<packed>|\.gz|\.tar|\.tar\.gz|\.tgz)")
GZIPPED = (".gz", ".tgz")


class Archive:
    """An archive of binlog files. `location`: a folder, or a URL that pyarrow supports, such as s3://bucket/prefix?region=eu-central-1."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._paths: dict[str, str] = {}

    def files(self) -> tuple[str, ...]:
        """Returns the names of the binlog files that the archive has now, in any order. Raises SourceConnectionError,
        ConfigurationError.
        """
        return tuple(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Returns name → size in bytes of the binlog files that the archive has now, as stored (compressed or not). Raises as `files`
        does.
        """
        with self._translated():
            store, root = self._store()
            found = store.get_file_info(pafs.FileSelector(root))
        named = {match["log"]: each for each in found if each.is_file and (match := _NAME.fullmatch(each.base_name))}
        self._paths = {file: each.path for file, each in named.items()}
        return {file: each.size or 0 for file, each in named.items()}

    @contextlib.contextmanager
    def open(self, file: str) -> Iterator[IO[bytes]]:
        """Yields the uncompressed bytes of a binlog file. Raises SourceConnectionError; PositionLostError if a tar does not contain it."""
        path = self._paths[file]
        with self._translated():
            store, _ = self._store()
            kind = "gzip" if path.endswith(GZIPPED) else None
            with store.open_input_stream(path, compression=kind) as stream:
                yield (
                    _member(stream, file, path)
                    if ".tar" in path[-7:] or path.endswith(".tgz")
                    else cast("IO[bytes]", stream)
                )

    def _store(self) -> tuple[pafs.FileSystem, str]:
        if "://" in self.location:
            store, root = pafs.FileSystem.from_uri(self.location)
            return store, root
        return pafs.LocalFileSystem(), self.location

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, tarfile.TarError) as error:
            raise SourceConnectionError(
                f"the archive {self.location} cannot be read: {error}; check its disk or object store"
            ) from error
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"the archive {self.location} cannot be opened: {error}; correct `archive` in conf/"
            ) from error


def _member(stream: Any, file: str, path: str) -> IO[bytes]:
    """Returns the file of that name in a tar. The tar is read from its beginning."""
    packed = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115  it lives as long as the stream
    for each in packed:
        found = packed.extractfile(each) if each.isfile() and PurePosixPath(each.name).name == file else None
        if found is not None:
            return found
    raise PositionLostError(f"the archive {path} does not contain {file}")
