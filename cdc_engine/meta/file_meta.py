"""meta.json of a destination: the one file that holds its ledger. Owns that file; everyone else reads it through `read_ledger`.

A write is a temporary file, fsync, rename, fsync of the directory: after a crash there is the old ledger or the new one, never half of
one. A file that cannot be understood is never written over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cdc_engine.durable_files import replace_file
from cdc_engine.errors import MetaError
from cdc_engine.meta.ledger import Ledger
from cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from cdc_engine.meta.manager import Transition

FILE_NAME = "meta.json"


def read_ledger(destination_dir: Path) -> Ledger:
    """The ledger of the destination whose directory this is; a fresh one where there is no file yet.

    Raises MetaError when the file cannot be read or understood. Never locks, never writes.
    """
    path = destination_dir / FILE_NAME
    try:
        return ledger_from_text(path.read_text(encoding="utf-8"), destination_dir.name)
    except FileNotFoundError:
        return Ledger()
    except (OSError, ValueError) as error:
        raise MetaError(
            f"{path} cannot be read as a ledger: {error}. Put back the right file, or move it away and set the position anew: "
            "without a ledger the destination starts from its configured start"
        ) from error


def _not_fenced() -> None:
    """Whoever holds no lease is alone by other means."""


class FileMeta:
    """Implements `MetaManager`. Reads the file once, then only writes it: the lease makes it the one writer.

    `fence` is called before each write and raises when this process may write no more (`ha.lease.Lease.check`).
    """

    def __init__(self, destination_dir: Path, *, fence: Callable[[], None] = _not_fenced) -> None:
        self._path = destination_dir / FILE_NAME
        self._fence = fence
        self._lock = threading.Lock()
        self._ledger = read_ledger(destination_dir)
        self._kept_text = ledger_to_text(self._ledger) if self._path.exists() else ""

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def update(self, transition: Transition) -> Ledger:
        with self._lock:
            outcome = transition(self._ledger)
            text = ledger_to_text(outcome)
            if text != self._kept_text:
                self._fence()
                self._write(text)
            self._ledger, self._kept_text = outcome, text
            return outcome

    def _write(self, text: str) -> None:
        try:
            replace_file(self._path, text)
        except OSError as error:
            raise MetaError(
                f"{self._path} could not be written ({error.strerror}): free space or give permission there; nothing was acked"
            ) from error
