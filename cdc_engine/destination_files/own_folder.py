"""Finds out, when an engine starts, whether the last engine of the destination used the same folder. The folders may differ if several
hosts share the ledger.

Each folder has an id (`folder.json`), and the ledger's record store has the id of the folder that was used last. Stored events exist only
in a folder. Staged batches, open snapshots and prepared transactions also exist only in a folder, unless `staging` is in an object store.
An engine with another folder must not continue as if it had these files.
"""

from __future__ import annotations

import json
import platform
import uuid
from pathlib import Path

from sluice.cdc_engine.errors import ConfigurationError, MetaError
from sluice.cdc_engine.records.files import FileRecordStore
from sluice.cdc_engine.records.location import as_location, record_store

FILE, LAST = "folder.json", "read-with-folder.json"


class OwnFolder:
    """Compares the destination's folder on this host with the folder that the last engine used. An engine creates this object at its start,
    after it has acquired the lease.
    """

    def __init__(self, directory: Path) -> None:
        """Compares the id of `directory` with the id of the folder that the last engine used. Reads nothing if the ledger is not shared,
        because then only one folder exists. Raises MetaError if an id cannot be read.
        """
        self._directory, self._location = directory, as_location(directory)
        self._noted = not self._location.is_shared
        self._own = "" if self._noted else _id_of(directory)
        last = {} if self._noted else _read(directory)
        self._last_host = str(last.get("host", ""))
        #: Whether the last engine of the destination used this folder. Also True if no engine has recorded its folder yet.
        self.is_last: bool = not last or last.get("id") == self._own

    def refuse_another(self) -> None:
        """Raises ConfigurationError if another folder was used last, and that folder may have files that this engine needs."""
        if self._location.is_apart or self.is_last:
            return
        name = self._directory.name
        raise ConfigurationError(
            f"the last engine of {name} was on {self._last_host}, with another folder than {self._directory}: staged "
            f"batches, open snapshots and prepared transactions are in the folder on {self._last_host}. Mount "
            "a common folder at this path on both hosts, or name a store in `staging` of conf/, so that no "
            f"common folder is needed. If the folder on {self._last_host} is lost, use the folder here: run "
            f"`sluice position set {name}` with the position that `sluice position show` prints, then start "
            "a snapshot with `sluice snapshot start` for each table whose snapshot was open"
        )

    def note(self) -> None:
        """Records that the destination's last engine used this folder. Only the first call writes, and only if the ledger is shared. Raises
        MetaError if the record cannot be written.
        """
        if not self._noted:
            record_store(self._directory).put(LAST, json.dumps({"id": self._own, "host": platform.node()}))
            self._noted = True


def forget_folder(directory: Path) -> None:
    """Removes the record of the folder that was used last, so that the next engine may use any folder. Raises MetaError if the record
    cannot be removed.
    """
    record_store(directory).remove(LAST)


def _id_of(directory: Path) -> str:
    files = FileRecordStore(directory)
    text = files.get(FILE)
    if text is None:
        text = json.dumps({"id": uuid.uuid4().hex})
        files.put(FILE, text)
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise MetaError(
            f"{files.where(FILE)} cannot be read ({error}); remove the file; Sluice then treats the folder as a new one"
        ) from error


def _read(directory: Path) -> dict[str, str]:
    records = record_store(directory)
    try:
        return dict(json.loads(records.get(LAST) or "{}"))
    except (ValueError, TypeError) as error:
        raise MetaError(
            f"{records.where(LAST)} cannot be read ({error}); remove this record, and start the engine on a host "
            "with the folder that the last engine of the destination used"
        ) from error
