"""Reads binlog files from an archive: a folder or an object store with files that were copied from a server, or exported by a managed
database.

The name of an archived file is the name of the binlog file, followed by .gz, .tar, .tar.gz or .tgz if the file is packed. The credentials
of an object store come from the environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
import structlog

from sluice.cdc_engine.durable_files import sync
from sluice.cdc_engine.errors import BinlogFormatError, ConfigurationError, PositionLostError, SourceConnectionError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.source.archive_fetch import POLL_SECONDS, ArchiveFetch

log = structlog.get_logger(__name__)

_NAME = re.compile(r"(?P<log>[^/]+\.\d{6,})(?P<packed>|\.gz|\.tar|\.tar\.gz|\.tgz)")
# Matches the names that the fetch command may get. A name must not begin with a hyphen, because the command would read it as an option.
_FETCHED_NAME = re.compile(r"\w[\w.-]*\.\d{6,}")
GZIPPED = (".gz", ".tgz")
PART, FETCH_LOCK = ".sluice-part", ".sluice-fetch.lock"


class Archive:
    """An archive of binlog files. `location` is a folder, or a URL that pyarrow supports, for example
    s3://bucket/prefix?region=eu-central-1. `fetch` is the command that fetches a file that the archive lacks. Only an archive in a folder
    may have such a command.
    """

    def __init__(self, location: str, fetch: ArchiveFetch | None = None) -> None:
        self.location, self._fetch = location, fetch
        self._paths: dict[str, str] = {}

    @property
    def can_fetch(self) -> bool:
        """Whether conf/ has a command that fetches missing files."""
        return self._fetch is not None

    def has(self, file: str) -> bool:
        """Returns whether the archive had the file at the last call of `files`, `sizes` or `fetch`."""
        return file in self._paths

    def fetch(self, file: str, check: Callable[[IO[bytes]], None], given_up: Callable[[], bool]) -> None:
        """Fetches a file that the archive lacks, with the command in conf/. Does nothing if another process has just fetched the file.
        `check` raises PositionLostError or BinlogFormatError if the file must not be stored.

        The command writes to a temporary file, which is renamed when it is complete. After a crash, the next fetch removes the incomplete
        file. Raises SourceConnectionError if there is no command, if it fails, or if `check` refuses the file. Raises InterruptedError if
        `given_up` returned True.
        """
        if self._fetch is None or not _FETCHED_NAME.fullmatch(file):
            raise SourceConnectionError(
                f"the archive {self.location} lacks {file}: copy the file into the archive. `archive_fetch` is not set "
                "in conf/, or cannot get a file of this name"
            )
        folder = Path(self.location)
        lock = FileLock(folder / FETCH_LOCK)
        with self._translated():
            folder.mkdir(parents=True, exist_ok=True)
            while not lock.try_acquire():
                if given_up():
                    raise InterruptedError(f"{file} is no longer needed")
                threading.Event().wait(POLL_SECONDS)
            try:
                if file not in self.files():
                    for left in folder.glob(f"*{PART}"):
                        if _FETCHED_NAME.fullmatch(left.name.removesuffix(PART)):
                            left.unlink(missing_ok=True)
                    self._into(self._fetch, folder, file, check, given_up)
                self.sizes()
            finally:
                lock.release()

    def _into(
        self,
        command: ArchiveFetch,
        folder: Path,
        file: str,
        check: Callable[[IO[bytes]], None],
        given_up: Callable[[], bool],
    ) -> None:
        part = folder / f"{file}{PART}"
        log.info("archive_fetch", file=file, program=command.command[0])
        try:
            command.run(file, part, given_up)
            with part.open("rb") as stream:
                check(stream)
                os.fsync(stream.fileno())
            part.replace(folder / file)
            sync(folder)
        except (PositionLostError, BinlogFormatError) as error:
            raise SourceConnectionError(
                f"archive_fetch: the file that the command {command.command[0]} wrote is refused: {error}; "
                "correct the command so that it writes the whole file as the server wrote it"
            ) from error
        finally:
            part.unlink(missing_ok=True)

    def files(self) -> tuple[str, ...]:
        """Returns the names of the binlog files in the archive, in any order. Raises SourceConnectionError if the archive cannot be read,
        and ConfigurationError if its location is invalid.
        """
        return tuple(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each binlog file as the archive stores it. For a compressed file, this is the compressed size.
        Raises SourceConnectionError if the archive cannot be read, and ConfigurationError if its location is invalid.
        """
        with self._translated():
            store, root = self._store()
            found = store.get_file_info(pafs.FileSelector(root, allow_not_found=self.can_fetch))
        named = {match["log"]: each for each in found if each.is_file and (match := _NAME.fullmatch(each.base_name))}
        self._paths = {file: each.path for file, each in named.items()}
        return {file: each.size or 0 for file, each in named.items()}

    @contextlib.contextmanager
    def open(self, file: str) -> Iterator[IO[bytes]]:
        """Yields a stream of the uncompressed bytes of a binlog file for which `has` returns True. Raises SourceConnectionError if the file
        cannot be read, and PositionLostError if the file's tar does not contain it.
        """
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
        except InterruptedError:
            raise
        except (OSError, EOFError, tarfile.TarError) as error:
            raise SourceConnectionError(
                f"the archive {self.location} cannot be read: {error}; check the disk or object store of the archive"
            ) from error
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"the archive {self.location} cannot be opened: {error}; correct `archive` in conf/"
            ) from error


def _member(stream: Any, file: str, path: str) -> IO[bytes]:
    """Returns the member with the name `file` of a tar. The stream must be at the beginning of the tar."""
    packed = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115  open as long as the stream
    for each in packed:
        found = packed.extractfile(each) if each.isfile() and PurePosixPath(each.name).name == file else None
        if found is not None:
            return found
    raise PositionLostError(f"the archived file {path} does not contain {file}: copy {file} into the archive")
