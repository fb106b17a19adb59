"""Stores records in a folder. The file NAME has the text of the record NAME and nothing else, so an operator can read and restore a record.
Other files, such as copies and temporary files of editors, are not records.

The version of a record is a digest of its text. A writer holds the lock of `records.lock` while it compares the version and writes, so
compare-and-set is one step for the processes of this host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.cdc_engine.durable_files import FileStamp, make_folder, replace_file, stamp_in, sync, write_file
from sluice.cdc_engine.errors import MetaError, StaleWriteError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.records.contract import NOT_THERE, NOTHING, RecordStore, StoredRecord

LOCK_FILE = "records.lock"
# Matches the names of the files that are records. Does not match Sluice's `.tmp` and `.lock` files, or files that editors and people leave,
# such as `NAME.json.bak`, `NAME.json~` and `.NAME.json.swp`.
FILE_NAME = re.compile(r"[\w%+-][\w%+.-]*\.json|[\w-]+", re.ASCII)
# After this many records, `write_all` releases the lock for a moment, so that other processes can write.
LOCKED_MAX = 100
LOCK_SECONDS_MAX, LOCK_POLL_SECONDS = 30.0, 0.005
# `read_all` lists a folder again after this time at the latest. Every write of a store replaces a file, which changes the folder's
# modification time. But a person may change a file without replacing it, and the folder's modification time then stays the same.
LISTED_SECONDS_MAX = 30.0


@dataclasses.dataclass(frozen=True)
class _Listing:
    """The last result of `read_all` for a prefix. `folder` is the folder's stamp (inode, modification time, size) before the listing, or
    None if the folder must be listed again. `stamps` has the stamp of each record's file. `listed_at` is a time of `time.monotonic`.
    """

    folder: FileStamp | None
    listed_at: float
    stamps: Mapping[str, FileStamp | None]
    records: Mapping[str, StoredRecord]


NEVER_LISTED = _Listing(None, 0.0, {}, {})


class FileRecordStore(RecordStore):
    """A record store in a folder, with one file per record. Records whose names have a folder are in a subfolder."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self._listings: dict[str, _Listing] = {}

    def read(self, name: str) -> StoredRecord | None:
        path = self._folder / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MetaError(f"{path} cannot be read ({error.strerror}): permit reading this file") from error
        # Accepts bytes that are not UTF-8. The caller, who knows what the record should contain, reports a damaged record.
        return StoredRecord(content.decode("utf-8", "surrogateescape"), _version(content))

    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        """Returns all records whose names consist of `prefix` and further characters without a slash, by name. If nothing has changed,
        returns the same object as the last call.

        Lists the folder again if a file in it was replaced, added or removed since the last call, or if LISTED_SECONDS_MAX have passed
        since the last listing. Reads only the files that were replaced, because most records stay unchanged.
        """
        folder, now, last = self._folder_stamp(prefix), time.monotonic(), self._listings.get(prefix, NEVER_LISTED)
        if folder is not None and folder == last.folder and now - last.listed_at < LISTED_SECONDS_MAX:
            return last.records
        stamps = self._stamps(prefix)
        settled = None not in stamps.values()
        found = last.records if settled and stamps == last.stamps else self._read_changed(stamps, last)
        kept = {name: stamp for name, stamp in stamps.items() if name in found}
        self._listings[prefix] = _Listing(folder if settled else None, now, kept, found)
        return found

    def _read_changed(self, stamps: Mapping[str, FileStamp | None], last: _Listing) -> dict[str, StoredRecord]:
        """Returns the records of these files. Reads only the files whose stamps differ from the last listing, or are unknown."""
        found = dict[str, StoredRecord]()
        for name, stamp in stamps.items():
            if stamp is not None and name in last.records and last.stamps.get(name) == stamp:
                found[name] = last.records[name]
            elif (read := self.read(name)) is not None:
                found[name] = read
        return found

    def _folder_stamp(self, prefix: str) -> FileStamp | None:
        """Returns the stamp of the folder with the records of `prefix`. Returns None, which means that the folder must be listed again, if
        the folder does not exist, or if it changed so recently that a further change could leave the stamp as it is.
        """
        with contextlib.suppress(OSError):  # `_stamps` reports the error.
            return stamp_in((self._folder / prefix.rpartition("/")[0]).stat())
        return None

    def _stamps(self, prefix: str) -> dict[str, FileStamp | None]:
        """Returns the stamp of each record's file. Must be called before the records are read. In the other order, a write between reading
        a record and querying its stamp would give the old text the stamp of the new file.
        """
        folder, slash, begin = prefix.rpartition("/")
        where, stamps = self._folder / folder, dict[str, FileStamp | None]()
        try:
            with os.scandir(where) as entries:
                for each in entries:
                    if each.name.startswith(begin) and FILE_NAME.fullmatch(each.name) and each.is_file():
                        # Leaves out a file that was removed since the folder was listed.
                        with contextlib.suppress(FileNotFoundError):
                            stamps[f"{folder}{slash}{each.name}"] = stamp_in(each.stat())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise MetaError(f"{where} cannot be read ({error.strerror}): permit reading this folder") from error
        return stamps

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:  # noqa: ARG002  of the contract
        content = text.encode("utf-8", "surrogateescape")
        with self._changing(name) as path:
            there = self.read(name)
            if (there.version if there else NOT_THERE) != version:
                raise StaleWriteError(f"{path} was changed by another process")
            if there is None or there.text != text:
                replace_file(path, content)
        return _version(content)

    def write_all(self, texts: Mapping[str, str], *, token: int = 0) -> None:  # noqa: ARG002  of the contract
        """Creates or replaces many records durably, whatever their stored versions are. After each LOCKED_MAX records, syncs their folders
        and releases the lock, so that the ledger can be written before the next records.
        """
        names = list(texts)
        for begin in range(0, len(names), LOCKED_MAX):
            folders = set[Path]()
            with self._changing(names[begin]):
                for name in names[begin : begin + LOCKED_MAX]:
                    path, content = self._folder / name, texts[name].encode("utf-8", "surrogateescape")
                    if not path.is_file() or path.read_bytes() != content:
                        write_file(path, content)
                        folders.add(path.parent)
                for folder in folders:
                    sync(folder)

    def remove(self, name: str, version: int | None = None) -> bool:
        if not (self._folder / name).exists():
            return False
        with self._changing(name) as path:
            if version is not None and ((there := self.read(name)) is None or there.version != version):
                return False
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            with contextlib.suppress(OSError):
                sync(path.parent)
        return True

    def where(self, name: str) -> str:
        return str(self._folder / name)

    def __str__(self) -> str:
        return str(self._folder)

    @contextlib.contextmanager
    def _changing(self, name: str) -> Iterator[Path]:
        """Holds the lock of the store during the `with` statement. Converts an OSError in its body to a MetaError that says what to do."""
        path, lock = self._folder / name, FileLock(self._folder / LOCK_FILE)
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        try:
            # Creates the folder durably, which `try_acquire` does not do.
            make_folder(self._folder)
            while not lock.try_acquire():
                if time.monotonic() >= deadline:
                    raise MetaError(
                        f"another process has held the lock {lock.path} for {LOCK_SECONDS_MAX:g} s: check "
                        "whether that process hangs, or end it"
                    )
                threading.Event().wait(LOCK_POLL_SECONDS)
            yield path
        except OSError as error:
            raise MetaError(
                f"{path} could not be written ({error.strerror}): free space on its disk, or permit writing "
                "to its folder"
            ) from error
        finally:
            lock.release()


def _version(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") or 1
