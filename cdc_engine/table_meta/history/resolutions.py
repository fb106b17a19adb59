"""Stores the schemas that operators gave for tables with unknown schemas, as records in the folder `schema-resolutions`.

`sluice schema resolve` stores a schema for the stop of a table. When the stream reaches the statement or row event of the stop again, the
schema history finds the stored schema by the order key of this event, and the table continues. Only the newest RECORDS_KEPT schemas are
stored. If the stream reaches a stop whose schema was removed, for example in a backfill, the table stops, and an operator must give the
schema again.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.table_meta.history.review_files import quoted_name
from sluice.cdc_engine.table_meta.schema import TableSchema

FOLDER = "schema-resolutions"
RECORDS_KEPT = 10_000


class Resolutions:
    """The schemas that operators gave for the tables of a destination. Methods raise MetaError if a record cannot be written or read."""

    def __init__(self, destination_dir: Path) -> None:
        self._records = record_store(destination_dir)

    def keep(self, schema: TableSchema, order_key: int) -> None:
        """Stores the schema that an operator gave for the table's stop at the event with this order key."""
        name = _name(schema.database, schema.table, order_key)
        record = {"database": schema.database, "table": schema.table, "schema": schema.to_json()}
        self._records.put(name, json.dumps({**record, "given_at_us": time.time_ns() // 1000}, indent=1))

    def forget_oldest(self, kept: int = RECORDS_KEPT) -> None:
        """Removes the oldest schemas until `kept` are left. Raises MetaError if the record store does not answer."""
        records = self._records.all(FOLDER)
        if len(records) > kept:
            for name in sorted(records, key=lambda each: _given_at(records[each]))[:-kept]:
                self._records.remove(name)

    def schema(self, database: str, table: str, order_key: int, reason: str) -> TableSchema | None:
        """Returns the schema that an operator gave for the table's stop at the event with this order key, or None if there is none.
        `reason` is the reason of the stop: earlier versions of Sluice stored the schema by it.
        """
        name = _name(database, table, order_key)
        text = self._records.get(name)
        if text is None:
            name = _name_before(database, table, reason)
            text = self._records.get(name)
        if text is None:
            return None
        try:
            return TableSchema.from_json(database, table, json.loads(text)["schema"])
        except (ValueError, KeyError, TypeError) as error:
            where = self._records.where(name)
            raise MetaError(
                f"{where} cannot be read: {error}; remove this record and resolve the schema again"
            ) from error


def _given_at(text: str) -> int:
    """Returns when a schema was given, in µs since 1970. Returns 0 for a record of an earlier version of Sluice, and for a record that
    cannot be read.
    """
    try:
        return int(json.loads(text)["given_at_us"])
    except (ValueError, KeyError, TypeError):
        return 0


def _name(database: str, table: str, order_key: int) -> str:
    return f"{FOLDER}/{order_key:020d}.{quoted_name(database, table)}.json"


def _name_before(database: str, table: str, reason: str) -> str:
    """Returns the name that earlier versions of Sluice gave to a record: with a digest of the table and of the reason of its stop."""
    digest = hashlib.sha256("\0".join((database, table, reason)).encode()).hexdigest()
    return f"{FOLDER}/{digest[:32]}.json"
