"""Stores a destination's ledger as the record `meta.json` in the destination's record store. Each write is a compare-and-set with the token
of the lease.

A new holder of the lease first writes the ledger unchanged under its own token (`RecordStore.claim`). After that, a record store that
several hosts share refuses every write of an earlier holder, even a write that arrives late.

If the record store does not answer a write, it is unknown whether the old or the new version of the ledger is stored. The old version in
memory stays valid, because no other process may write. The next write first finds out which of the two versions is stored. A record that
cannot be read is never overwritten.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

from sluice.cdc_engine.errors import LeaseLostError, MetaError, StaleWriteError
from sluice.cdc_engine.meta.ledger import Ledger, born_id
from sluice.cdc_engine.meta.ledger_record import FORMAT, ledger_from_text, ledger_to_text
from sluice.cdc_engine.meta.manager import Transition
from sluice.cdc_engine.records.contract import NOT_THERE, NOTHING, RecordStore, StoredRecord

LEDGER = "meta.json"
# The name of the ledger's record in a shared record store of format 3, which earlier versions of Sluice wrote.
LEDGER_OF_FORMAT_3 = "ledger"


def read_stored_ledger(records: RecordStore, destination: str) -> Ledger:
    """Returns the stored ledger, or an empty `Ledger` if none is stored. Never writes. Raises MetaError if the record store does not answer
    or the ledger is invalid.
    """
    stored = _read(records)
    return Ledger() if stored is None else _ledger(stored, records, destination)


def _read(records: RecordStore) -> StoredRecord | None:
    stored = records.read(LEDGER)
    if stored is None and records.read(LEDGER_OF_FORMAT_3) is not None:
        raise MetaError(
            f"{records} has records of an earlier version of Sluice under other names: note the cursor in "
            f"{LEDGER_OF_FORMAT_3}, remove these records, and begin a new ledger with `sluice position set`. "
            "The new ledger takes the tables over under a new epoch"
        )
    return stored


def _ledger(stored: StoredRecord, records: RecordStore, destination: str) -> Ledger:
    try:
        return ledger_from_text(stored.text, destination)
    except ValueError as error:
        if earlier := _cursor_of_earlier(stored.text):
            raise MetaError(
                f"{records.where(LEDGER)} is the ledger of an earlier version of Sluice: move it away, begin "
                f"a new ledger with `sluice position set {destination} {earlier}` at the cursor of the old "
                "ledger (the new ledger takes the tables over under a new epoch), resume the tables that were "
                "stopped (`sluice schema resume`), and repeat the snapshots that were not complete (`sluice snapshot start`)"
            ) from error
        raise MetaError(
            f"{records.where(LEDGER)} is not a valid ledger: {error}. Restore the ledger; if no copy exists, "
            f"move the damaged ledger away and begin a new ledger with `sluice position set {destination} "
            "--latest` or another position. The new ledger takes the tables over under a new epoch"
        ) from error


def _cursor_of_earlier(text: str) -> str:
    """Returns the cursor of a ledger in an earlier format, as FILE:OFFSET. Returns "" if `text` is not a ledger of an earlier format, or if
    the ledger has no cursor.
    """
    try:
        record = json.loads(text)
        cursor = record["cursor"] if int(record["format"]) < FORMAT else None
        return f"{cursor['file']}:{cursor['offset']}" if cursor else ""
    except (ValueError, KeyError, TypeError):
        return ""


def nobody_else(_: Ledger) -> Mapping[str, str]:
    """Returns no values: the default of `also`, for a ledger that no other program reads."""
    return NOTHING


def _not_fenced() -> None:
    """Does nothing: the default of `fence`, for a caller that has no lease and excludes other writers in another way."""


class StoredLedger:
    """A `MetaManager` that stores the ledger in a record store. The constructor reads the record. Later, the record is read only if the
    record store did not answer a write. `token` is the token of the lease, or 0 for a caller without a lease. `fence` is called before each
    write, and raises an error if this process has lost the lease (`ports.Lease.check`). `also` returns values that other programs read.
    These values are stored in the same step as the ledger.
    """

    def __init__(
        self,
        records: RecordStore,
        destination: str,
        *,
        token: int = 0,
        fence: Callable[[], None] = _not_fenced,
        also: Callable[[Ledger], Mapping[str, str]] = nobody_else,
    ) -> None:
        self._records, self._destination = records, destination
        self._token, self._fence, self._also = token, fence, also
        self._lock = threading.Lock()
        # The text of the last write if the record store did not answer, so that it is unknown whether the text was stored. Otherwise None.
        self._unsure: str | None = None
        self._refused: LeaseLostError | None = None
        stored = _read(records)
        self._ledger = _ledger(stored, records, destination) if stored else Ledger(ledger_id=born_id())
        if stored is not None and token:
            stored = self._claimed()
            self._ledger = _ledger(stored, records, destination) if stored else self._ledger
        self._version = stored.version if stored else NOT_THERE
        self._text = stored.text if stored else ""

    @property
    def is_new(self) -> bool:
        """Whether this ledger was never written."""
        return not self._text

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def update(self, transition: Transition) -> Ledger:
        with self._lock:
            outcome = transition(self._ledger)
            text = ledger_to_text(outcome)
            if text != self._text or self._unsure is not None:
                self._fence()
                self._settle()
                self._write(text, outcome)
            self._ledger, self._text = outcome, text
            return outcome

    def require_own(self) -> None:
        if self._refused is not None:
            raise self._refused

    def close(self) -> None:
        """Does nothing, because each write is complete when `update` returns."""

    def _claimed(self) -> StoredRecord | None:
        try:
            return self._records.claim(LEDGER, self._token)
        except StaleWriteError as error:
            raise self._superseded(self._records.read(LEDGER)) from error

    def _write(self, text: str, outcome: Ledger) -> None:
        try:
            self._version = self._records.write(
                LEDGER, text, version=self._version, token=self._token, also=self._also(outcome)
            )
        except StaleWriteError as error:
            raise self._superseded(self._records.read(LEDGER)) from error
        except MetaError:
            self._unsure = text
            raise

    def _settle(self) -> None:
        """If the record store did not answer the last write, finds out which version is stored. Raises LeaseLostError if another process
        wrote or removed the ledger.
        """
        if self._unsure is None:
            return
        there = self._records.read(LEDGER)
        ours = {self._unsure, self._text} if there and there.token in {self._token, 0} else {self._text}
        if (there.text if there else "") not in ours:
            raise self._superseded(there)
        self._version, self._text = (there.version, there.text) if there else (NOT_THERE, "")
        self._unsure = None

    def _superseded(self, there: StoredRecord | None) -> LeaseLostError:
        holder = f"the holder of lease {there.token}" if there and there.token else "another process"
        what = f"was written by {holder}" if there else "was removed"
        self._refused = LeaseLostError(
            f"the ledger of {self._destination} in {self._records} {what}, so the write of lease "
            f"{self._token} is refused: this engine writes no more, and continues when it gets the lease again"
        )
        return self._refused
