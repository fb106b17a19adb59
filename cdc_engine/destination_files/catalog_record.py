"""Reads and writes `catalog.json` of a destination, which records the tables that are registered in the catalog of conf/. Runs write this
record, and the engine sensor's ticks read it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sluice.cdc_engine.records.location import Location, record_store

RECORD = "catalog.json"
SHOWN_MAX = 5
AGAIN = "correct the cause; the next run then registers the tables again, and `sluice lake register` does so at once"
Identifier = tuple[str, str, str]  # (catalog, schema, name)


class CatalogEntry(NamedTuple):
    """The record of one name in the catalog: the name of a Delta table, or of a view of it. `path` is the path of the Delta table, and `of`
    its source table ("database.table").

    The fields `over`, `shape` and `comments` are set only for a view. `over` is the name of the table that the view reads. `shape` and
    `comments` are digests of the columns and comments with which the view was created. `shape` is empty if the columns have changed since
    then. Digests are stored instead of the columns and comments, because the columns and comments of all tables could exceed the megabyte
    that a record may have in ZooKeeper.
    """

    of: str
    path: str
    over: Identifier | None = None
    shape: str = ""
    comments: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registered:
    """The content of `catalog.json`.
    - `tables`: the entry of each name in the catalog.
    - `failed`: why a table is not registered, by the name that it should have.
    - `error`: why no table could be registered, for example because Spark has no such catalog. Otherwise empty.
    - `tried_at`: when a run last tried to register tables, in seconds since 1970.
    """

    tables: Mapping[Identifier, CatalogEntry] = dataclasses.field(default_factory=dict)
    failed: Mapping[Identifier, str] = dataclasses.field(default_factory=dict)
    error: str = ""
    tried_at: float = 0.0

    @classmethod
    def of(cls, text: str | None) -> Registered:
        record: dict[str, Any] = json.loads(text) if text else {}
        return cls(
            tables={_identifier(each["name"]): _entry(each) for each in record.get("tables", ())},
            failed={_identifier(each["name"]): each["reason"] for each in record.get("failed", ())},
            error=record.get("error", ""),
            tried_at=record.get("tried_at", 0.0),
        )

    def to_text(self) -> str:
        tables = [
            {"name": name, **{field: value for field, value in entry._asdict().items() if value}}
            for name, entry in sorted(self.tables.items())
        ]
        failed = [{"name": name, "reason": why} for name, why in sorted(self.failed.items())]
        record = {"tables": tables, "failed": failed, "error": self.error, "tried_at": self.tried_at}
        return json.dumps(record, indent=1) + "\n"

    @property
    def troubles(self) -> list[str]:
        """Returns a message for each table that is not registered, and one if no table could be registered."""
        each = [
            f"{'.'.join(name)} is not registered in the catalog: {why}; {AGAIN}"
            for name, why in sorted(self.failed.items())
        ]
        return [*([f"no table can be registered in the catalog: {self.error}; {AGAIN}"] if self.error else []), *each]


def catalog_troubles(directory: Location) -> tuple[str, ...]:
    """Returns at most SHOWN_MAX messages about tables that could not be registered, and a last message with the number of the other tables.
    Raises MetaError if the record cannot be read.
    """
    troubles = read_registered(directory).troubles
    rest = len(troubles) - SHOWN_MAX
    return (*troubles[:SHOWN_MAX], *([f"{rest} more tables are not registered in the catalog"] if rest > 0 else []))


def read_registered(directory: Location) -> Registered:
    """Returns the content of `catalog.json`, which is empty if no run has written it. Raises MetaError if it cannot be read."""
    return Registered.of(record_store(directory).get(RECORD))


def write_registered(directory: Location, registered: Registered) -> None:
    """Replaces the content of `catalog.json`. Raises MetaError if it cannot be written."""
    record_store(directory).put(RECORD, registered.to_text())


def _entry(record: Mapping[str, Any]) -> CatalogEntry:
    over = record.get("over")
    return CatalogEntry(
        record["of"],
        record["path"],
        _identifier(over) if over else None,
        record.get("shape", ""),
        record.get("comments", ""),
    )


def _identifier(parts: Sequence[str]) -> Identifier:
    catalog, schema, name = parts
    return catalog, schema, name
