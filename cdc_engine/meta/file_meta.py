"""Keeps a destination's ledger in the file meta.json. Owns that file; all other code reads it through `read_ledger`.

A write is a temporary file, fsync, rename and fsync of the directory: after a crash the file holds the old ledger or the new one, never a
part of one. A file that cannot be understood is never overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cdc_engine.durable_files import replace_file
from cdc_engine.errors import MetaError
from cdc_engine.meta.ledger import Ledger, born_id
from cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from cdc_engine.meta.manager import Transition

FILE_NAME = "meta.json"


def read_ledger(destination_dir: Path) -> Ledger:
    """Returns the ledger of the destination in this directory; a new one if there is no file yet.

    Raises MetaError when the file cannot be read or understood. Never locks, never writes.
    """
    path = destination_dir / FILE_NAME
    try:
        return ledger_from_text(path.read_text(encoding="utf-8"), destination_dir.name)
    except FileNotFoundError:
        return Ledger()
    except (OSError, ValueError) as error:
        raise MetaError(
            f"{path} cannot be read as a ledger: {error}. Restore the file; if it is lost, move it away and begin a new "
            f"ledger with `sluice position set {destination_dir.name} --latest` or another position, which takes over the "
            "tables under a new epoch"
        ) from error


def ledger_text(destination_dir: Path) -> str:
    """Returns the text of the file; empty if it is missing or cannot be read."""
    try:
        return (destination_dir / FILE_NAME).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _not_fenced() -> None:
    """Does nothing: without a lease, other means ensure that there is one writer."""


class FileMeta:
    """The ledger in a file. Implements `MetaManager`. Reads the file once, then only writes it: the lease makes this process the one
    writer.

    `fence` is called before each write and raises when this process may not write any more (`ports.Lease.check`).
    """

    def __init__(self, destination_dir: Path, *, fence: Callable[[], None] = _not_fenced) -> None:
        self._path = destination_dir / FILE_NAME
        self._fence = fence
        self._lock = threading.Lock()
        there = self._path.exists()
        self._ledger = read_ledger(destination_dir) if there else Ledger(ledger_id=born_id())
        self._kept_text = ledger_to_text(self._ledger) if there else ""

    @property
    def is_new(self) -> bool:
        """Whether this ledger was never written: there was no file."""
        return not self._kept_text

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

    def close(self) -> None:
        """Does nothing: no file is open between two writes."""

    def _write(self, text: str) -> None:
        try:
            replace_file(self._path, text)
        except OSError as error:
            raise MetaError(
                f"{self._path} could not be written ({error.strerror}): free space or give permission there; nothing was acked"
            ) from error
