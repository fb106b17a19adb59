"""Stores the schema changes of a destination that wait for approval, and the approvals, as records in the folder `schema-changes`.

The engine stores a schema change that waits (`note`). The console reads the change and stores an operator's approval (`approve`). The
engine reads the approval when the stream reaches the statement again (`approved`). A record is replaced as a whole, so readers never see a
part of a record. An approval stays while the stream may reach its statement again. If there are more than RECORDS_KEPT records, the oldest
records of statements that only a backfill can reach again are removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import urllib.parse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.table_meta.change.policy import PendingChange, described

FOLDER = "schema-changes"
HELD, APPROVED = "held", "approved"
POSITION_BEFORE = "place"  # The JSON key of the position in records that earlier versions of Sluice wrote.
RECORDS_KEPT = 10_000
NAME_CHARS_MAX = 72  # The name of a record contains at most this many characters of its table's name.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PendingRecord:
    """The record of a schema change that waits for approval. Each item is one change of the statement: (description, plan → what the plan
    does in the lake).
    """

    database: str
    table: str
    order_key: int
    position: str
    statement: str
    reason: str
    choices: tuple[str, ...]
    items: tuple[tuple[str, dict[str, str]], ...]

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class ReviewFiles:
    """The schema changes of one destination that wait for approval, and the approvals. All methods raise MetaError if the record store
    fails.
    """

    def __init__(self, destination_dir: Path) -> None:
        self._records = record_store(destination_dir)

    def note(self, pending: PendingChange) -> None:
        """Stores a schema change that waits for approval. Storing the same statement again has no effect."""
        items = [(item.what, dict(item.plans)) for item in pending.items]
        alterations = [described(item.alteration) for item in pending.items if item.alteration is not None]
        record = {**dataclasses.asdict(pending), "reason": pending.reason, "items": items, "alterations": alterations}
        self._records.put(_name(pending.database, pending.table, pending.order_key, HELD), json.dumps(record, indent=1))

    def pending(self, stop: StoppedTable) -> PendingRecord | None:
        """Returns the schema change that stopped a table, or None if the stop has another cause. Raises MetaError if a record cannot be
        read.
        """
        if stop.order_key:
            name = _name(stop.database, stop.table, stop.order_key, HELD)
            text = self._records.get(name)
            return None if text is None else self._pending(name, text)
        return self._pending_before(stop.database, stop.table, stop.reason)

    def _pending_before(self, database: str, table: str, reason: str) -> PendingRecord | None:
        """Called for a stop without an order key, which an earlier version of Sluice has stored. Returns the schema change of the table
        that has the same reason as the stop, or None.
        """
        ending = f".{quoted_name(database, table)}.{HELD}.json"
        found = (self._pending(name, text) for name, text in self._records.all(FOLDER).items() if name.endswith(ending))
        return next((each for each in found if each.reason == reason), None)

    def first_after(self, table: str, order_key: int) -> PendingRecord | None:
        """Returns the first schema change of `table` ("database.table") after `order_key` that has no approval. If all of them are
        approved, returns the first one. Returns None if there is no schema change after `order_key`. Raises MetaError if a record cannot be
        read.
        """
        records = sorted(
            (name, text) for name, text in self._records.all(FOLDER).items() if name.endswith(f".{HELD}.json")
        )
        found = (self._pending(name, text) for name, text in records)
        after = [each for each in found if each.name == table and each.order_key > order_key]
        waiting = (each for each in after if not self.approved(each.database, each.table, each.order_key))
        return next(waiting, after[0] if after else None)

    def approve(self, pending: PendingRecord, plan: str, *, replaces: bool = True) -> str:
        """Stores an operator's approval of `plan`. Returns the plan that was approved before, or "". Without `replaces`, an earlier
        approval of another plan stays. Raises MetaError if the record cannot be read.
        """
        name = _name(pending.database, pending.table, pending.order_key, APPROVED)
        record = {
            "plan": plan,
            "statement": pending.statement,
            "position": pending.position,
            "approved_at_us": time.time_ns() // 1000,
        }
        before = ""

        def decided(text: str | None) -> str:
            nonlocal before
            before = "" if text is None else str(self._record(name, text, {"plan"})["plan"])
            return text if text is not None and before != plan and not replaces else json.dumps(record, indent=1)

        self._records.change(name, decided)
        return before

    def approved(self, database: str, table: str, order_key: int) -> str:
        """Returns the plan that an operator approved for the statement, or "". Raises MetaError if the record cannot be read."""
        name = _name(database, table, order_key, APPROVED)
        text = self._records.get(name)
        return "" if text is None else str(self._record(name, text, {"plan"})["plan"])

    def forget_before(self, order_key: int, kept: int = RECORDS_KEPT) -> None:
        """Removes the oldest records until `kept` records are left. Keeps all records of statements at or after `order_key`, even more than
        `kept`, because the stream may read these statements again. Raises MetaError if the record store does not answer.
        """
        names = sorted(self._records.all(FOLDER))  # A name begins with the order key of the statement.
        first_needed = f"{FOLDER}/{order_key:020d}"
        for name in names[: max(0, len(names) - kept)]:
            if name < first_needed:
                self._records.remove(name)

    def _pending(self, name: str, text: str) -> PendingRecord:
        fields = {field.name for field in dataclasses.fields(PendingRecord)}
        record = self._record(name, text, fields - {"position"})
        record.setdefault("position", record.get(POSITION_BEFORE, ""))
        values = {name: record[name] for name in fields}
        items = tuple((str(what), dict(plans)) for what, plans in values["items"])
        return PendingRecord(**{**values, "items": items, "choices": tuple(values["choices"])})

    def _record(self, name: str, text: str, needed: Collection[str]) -> dict[str, Any]:
        try:
            record = json.loads(text)
            if not isinstance(record, dict):
                raise TypeError("not a record")
            if missing := sorted({*needed} - record.keys()):
                raise ValueError(f"it lacks {', '.join(missing)}")
        except (ValueError, TypeError) as error:
            where = self._records.where(name)
            raise MetaError(
                f"{where} cannot be read: {error}; restore this record, or remove it and decide again"
            ) from error
        return record


def _name(database: str, table: str, order_key: int, kind: str) -> str:
    return f"{FOLDER}/{order_key:020d}.{quoted_name(database, table)}.{kind}.json"


def quoted_name(database: str, table: str) -> str:
    """Returns the part of a record's name that identifies a table. The part has no dots and a limited length. Different tables have
    different parts, even if letter case is ignored.
    """
    quoted = (urllib.parse.quote(name, safe="").replace(".", "%2E").replace("~", "%7E") for name in (database, table))
    whole = "+".join(quoted)
    if len(whole) <= NAME_CHARS_MAX and whole == whole.lower():
        return whole
    return f"{whole[: NAME_CHARS_MAX // 2]}+{hashlib.sha256(whole.encode()).hexdigest()[:32]}"
