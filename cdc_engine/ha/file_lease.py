"""Implements the lease of a destination for the processes of one machine. The holder of the lease may read the destination's binlog and
write its ledger.

The process that holds the lock on lease.lock holds the lease. lease.json records this process for messages, and the number of the
acquisition (`token`). The package `instance` acquires the lease before it starts the engine. The ledger calls `check` before each write.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from pathlib import Path

from sluice.cdc_engine.contracts import Holder
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import LeaseLostError
from sluice.cdc_engine.file_lock import FileLock, is_locked

LOCK_NAME, RECORD_NAME = "lease.lock", "lease.json"


def read_holder(destination_dir: Path) -> Holder | None:
    """Returns the current or last holder of a destination's lease. Returns None if there never was a holder, or if the record cannot be
    read.
    """
    record = _read_record(destination_dir / RECORD_NAME)
    return dataclasses.replace(record, held=is_locked(destination_dir / LOCK_NAME)) if record else None


class FileLease:
    """A lease for the processes of one machine (implements `ports.Lease`). Only `check` and `holder` may be called from several threads."""

    def __init__(self, destination_dir: Path) -> None:
        self._directory = destination_dir
        self._lock = FileLock(destination_dir / LOCK_NAME)
        self.token = 0

    def try_acquire(self) -> bool:
        """Takes the lease if no living process holds it, without waiting. Returns whether this process holds the lease. The `token` of a
        new holder is higher than the tokens of all earlier holders.
        """
        if self.token and self._lock.held:
            return True
        if not self._lock.try_acquire():
            return False
        previous = _read_record(self._directory / RECORD_NAME)
        # The token must be higher than all earlier ones. If the record exists but cannot be read, because somebody edited it or the disk
        # was full, the earlier tokens are unknown. The token is then counted from the seconds since 1970, which are more than any number of
        # acquisitions.
        floor = previous.token if previous else int(time.time()) if (self._directory / RECORD_NAME).exists() else 0
        holder = Holder(pid=os.getpid(), host=socket.gethostname(), since=time.time(), token=floor + 1)
        try:
            _write_record(self._directory / RECORD_NAME, holder)
        except OSError:
            self._lock.release()
            raise
        self.token = holder.token
        return True

    def holder(self) -> Holder | None:
        """Returns the current or last holder, or None if there never was one or its record cannot be read."""
        return read_holder(self._directory)

    def check(self) -> None:
        """Raises LeaseLostError if this process does not hold the lease, for example because the lock file was removed."""
        if not self.token or not self._lock.held:
            holder = self.holder()
            other = (
                f"process {holder.pid} on {holder.host} holds the lease"
                if holder and holder.held
                else "no process holds the lease"
            )
            raise LeaseLostError(
                f"the lease of {self._directory.name} ({self._lock.path}) is not held by this process; "
                f"{other}: this engine writes no more, and continues when it gets the lease again"
            )

    def release(self) -> None:
        """Releases the lease, if it is held."""
        self.token = 0
        self._lock.release()


def _read_record(path: Path) -> Holder | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Holder(
            pid=int(record["pid"]), host=str(record["host"]), since=float(record["since"]), token=int(record["token"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_record(path: Path, holder: Holder) -> None:
    record = dataclasses.asdict(holder)
    del record["held"]
    replace_file(path, json.dumps(record))
