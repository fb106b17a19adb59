"""Keeps a destination's ledger in a record store: a SQL database, ZooKeeper or memory. Every write is compare-and-set under the lease's
token.

A new holder of the lease first writes the ledger unchanged under its own token (`_claim`). After that, no write of an earlier holder can
succeed, however late it arrives. A write without an answer may have been stored or not: the ledger in memory is right, because nobody
else may write, and the next write follows whichever version is stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from cdc_engine.errors import LeaseLostError, MetaError, StaleWriteError
from cdc_engine.meta.ledger import Ledger, born_id
from cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from cdc_engine.meta.manager import Transition
from cdc_engine.records.contract import NOT_THERE, NOTHING, RecordStore, StoredRecord

LEDGER = "ledger"
CLAIMS_MAX = 10  # the previous holder may still write, a few times at most


def read_kept_ledger(documents: RecordStore, destination: str) -> Ledger:
    """Returns the stored ledger; a new one if there is none. Raises MetaError."""
    kept = documents.read(LEDGER)
    return Ledger() if kept is None else _ledger(kept, documents, destination)


def _ledger(kept: StoredRecord, documents: RecordStore, destination: str) -> Ledger:
    try:
        return ledger_from_text(kept.text, destination)
    except ValueError as error:
        raise MetaError(
            f"{LEDGER} in {documents} cannot be read as a ledger: {error}. Restore it; if it is lost, remove it and begin a "
            f"new one with `sluice position set {destination} --latest` or another position, which takes over the tables "
            "under a new epoch"
        ) from error


def nobody_else(_: Ledger) -> Mapping[str, str]:
    """Returns nothing: no values are written for readers other than Sluice."""
    return NOTHING


def _not_fenced() -> None:
    """Does nothing: without a lease, other means ensure that there is one writer."""


class KeptMeta:
    """The ledger in a record store. Implements `MetaManager`. `token`: of the lease. `fence`: called before each write; raises when this
    process may not write any more.

    `also`: returns what is written for other readers in the same step.
    """

    def __init__(
        self,
        documents: RecordStore,
        destination: str,
        *,
        token: int = 0,
        fence: Callable[[], None] = _not_fenced,
        also: Callable[[Ledger], Mapping[str, str]] = nobody_else,
    ) -> None:
        self._documents, self._destination = documents, destination
        self._token, self._fence, self._also = token, fence, also
        self._lock = threading.Lock()
        self._unsure: str | None = None  # the text whose write got no answer
        kept = documents.read(LEDGER)
        if kept is not None and token:
            kept = self._claim(kept)
        self._version = kept.version if kept else NOT_THERE
        self._ledger = _ledger(kept, documents, destination) if kept else Ledger(ledger_id=born_id())
        self._kept_text = kept.text if kept else ""

    @property
    def is_new(self) -> bool:
        """Whether this ledger was never written."""
        return not self._kept_text

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def update(self, transition: Transition) -> Ledger:
        with self._lock:
            outcome = transition(self._ledger)
            text = ledger_to_text(outcome)
            if text != self._kept_text or self._unsure is not None:
                self._fence()
                self._settle()
                self._write(text, outcome)
            self._ledger, self._kept_text = outcome, text
            return outcome

    def close(self) -> None:
        """Does nothing: no write is under way, because each was answered or reported."""

    def _claim(self, kept: StoredRecord) -> StoredRecord:
        """Writes the ledger unchanged under this lease's token and returns it."""
        for _ in range(CLAIMS_MAX):
            if kept.token > self._token:
                break
            try:
                version = self._documents.write(LEDGER, kept.text, version=kept.version, token=self._token)
            except StaleWriteError:
                kept = self._documents.read(LEDGER) or kept
            else:
                return StoredRecord(kept.text, version, self._token)
        raise self._superseded(kept)

    def _write(self, text: str, outcome: Ledger) -> None:
        try:
            self._version = self._documents.write(
                LEDGER, text, version=self._version, token=self._token, also=self._also(outcome)
            )
        except StaleWriteError as error:
            raise self._superseded(self._documents.read(LEDGER)) from error
        except MetaError:
            self._unsure = text
            raise

    def _settle(self) -> None:
        """Finds out which version is stored after a write without an answer. Raises LeaseLostError if it is another writer's."""
        if self._unsure is None:
            return
        there = self._documents.read(LEDGER)
        ours = {self._unsure, self._kept_text} if there and there.token == self._token else {self._kept_text}
        if (there.text if there else "") not in ours:
            raise self._superseded(there)
        self._version = there.version if there else NOT_THERE
        self._unsure = None

    def _superseded(self, there: StoredRecord | None) -> LeaseLostError:
        by = f"by the holder of lease {there.token}" if there else "by somebody who removed it"
        return LeaseLostError(
            f"the ledger of {self._destination} in {self._documents} was written {by}; what lease {self._token} wanted to write is "
            "refused: this engine writes no more; it takes the destination again when the lease is free"
        )
