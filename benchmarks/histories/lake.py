"""Simulates a lake with Delta's transaction rules: versions, txn versions by application id, properties, RESTORE, and folders that
disappear.

Only storage is simulated. Production (`spark_jobs`) decides which statements a merge executes, and with which txn versions. `statements`
interprets the statements. Each commit is checked. If a key returns to an older change, or an image is duplicated, a sentence about it is
added to `violations`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

Keyed = Mapping[int, tuple[int, int]]  # Id → (number of the change, order key).
# (operation, id, number, order key), in the order in which the entries were appended.
Log = tuple[tuple[str, int, int, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a Delta table. `columns` are (name, Spark type). `txns` has the txn version of each application id. `restored` is the
    version that a RESTORE restored, or -1 for any other commit.
    """

    operation: str
    columns: tuple[tuple[str, str], ...]
    properties: Mapping[str, str]
    txns: Mapping[str, int] = dataclasses.field(default_factory=dict)
    keyed: Keyed = dataclasses.field(default_factory=dict)
    log: Log = ()
    metadata: str = ""
    restored: int = -1

    @property
    def rows(self) -> int:
        return len(self.keyed) + len(self.log)


class Table:
    """A Delta table with its versions. `id` is Delta's table id, which is created together with the folder."""

    def __init__(self, identity: str, first: Version) -> None:
        self.id = identity
        self.versions = [first]

    @property
    def last(self) -> Version:
        return self.versions[-1]


class Lake:
    """The tables of the lake by path, and the violations of the guarantees."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.violations: list[str] = []
        self._made = 0
        # For each (path, id), the number of the newest change of that row that the lake ever had.
        self._newest: dict[tuple[str, int], int] = {}

    def create(self, path: str, version: Version) -> None:
        if path not in self.tables:
            self._made += 1
            self.tables[path] = Table(f"00000000-0000-0000-0000-{self._made:012d}", version)

    def commit(self, path: str, version: Version) -> None:
        table = self.table(path)
        self._look_at(path, table.last, version)
        table.versions.append(version)

    def table(self, path: str) -> Table:
        if path not in self.tables:
            raise DeltaError(f"{path} is not a Delta table: its folder is gone")
        return self.tables[path]

    # ── changes by other writers ──

    def restore(self, path: str, versions_back: int) -> bool:
        """Executes RESTORE TABLE … TO VERSION AS OF. Rows, columns and properties return to that version, but txn versions do not."""
        table = self.tables.get(path)
        if table is None or len(table.versions) <= versions_back:
            return False
        number = len(table.versions) - 1 - versions_back
        then, txns = table.versions[number], table.last.txns
        restored = dataclasses.replace(then, operation="RESTORE", txns=txns, metadata="", restored=number)
        table.versions.append(restored)
        self._forget(path)
        return True

    def drop(self, path: str) -> bool:
        """Removes the table's folder, as a deletion or an unmounted disk does. Returns whether it existed."""
        self._forget(path)
        return self.tables.pop(path, None) is not None

    def copy_over(self, path: str) -> bool:
        """Rewrites the table, as CREATE OR REPLACE … AS SELECT does. The table then has the same rows, another id, and no txn versions."""
        table = self.tables.get(path)
        if table is None:
            return False
        self._made += 1
        last = dataclasses.replace(table.last, txns={}, properties={}, operation="CREATE TABLE AS SELECT", metadata="")
        self.tables[path] = Table(f"00000000-0000-0000-0000-{self._made:012d}", last)
        return True

    def _forget(self, path: str) -> None:
        for key in [key for key in self._newest if key[0] == path]:
            del self._newest[key]

    # ── the guarantee, checked per commit ──

    def _look_at(self, path: str, before: Version, after: Version) -> None:
        name = "/".join(path.split("/")[-2:])
        for key in before.keyed.keys() | after.keyed.keys():
            then, now = before.keyed.get(key), after.keyed.get(key)
            if then != now and after.operation != "DELETE":
                self._changed(path, name, key, then, now)
        seen = {entry[:3] for entry in before.log}
        for entry in after.log[len(before.log) :]:
            if entry[:3] in seen:
                self.violations.append(f"{name}: the image {entry[:3]} is there twice")
            seen.add(entry[:3])

    def _changed(
        self, path: str, name: str, key: int, then: tuple[int, int] | None, now: tuple[int, int] | None
    ) -> None:
        newest = self._newest.get((path, key), 0)
        number = now[0] if now else (then or (0, 0))[0]
        if number < newest or (now is not None and then is None and number == newest):
            self.violations.append(f"{name}: row {key} goes back from change {newest} to {number}")
        self._newest[path, key] = max(newest, number)


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    type: str
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nullable: bool = True


@dataclasses.dataclass(frozen=True)
class _Named:
    """An object with all attributes that production reads from deltalake's schema, metadata and protocol objects."""

    fields: Sequence[_Field] = ()
    id: str = ""
    configuration: Mapping[str, str] = dataclasses.field(default_factory=dict)
    min_writer_version: int = 7
    reader_features: Sequence[str] = ()
    writer_features: Sequence[str] = ()
    partition_columns: Sequence[str] = ()


class PlayedDeltaTable:
    """Replaces `deltalake.DeltaTable`, and shows a table's log as of the last time that the log was read."""

    lake: Lake

    def __init__(self, path: str, version: int | None = None, **_: Any) -> None:
        self._path = path.removeprefix("file://")
        self._at = -1
        self.update_incremental()
        if version is not None:
            self._at = version

    def update_incremental(self) -> None:
        table = PlayedDeltaTable.lake.tables.get(self._path)
        if table is None:
            raise TableNotFoundError(f"no table at {self._path}")
        self._table, self._at = table, len(table.versions) - 1

    @property
    def _now(self) -> Version:
        return self._table.versions[self._at]

    def version(self) -> int:
        return self._at

    def transaction_version(self, app_id: str) -> int | None:
        return self._now.txns.get(app_id)

    def schema(self) -> _Named:
        return _Named(fields=[_Field(name, type_name) for name, type_name in self._now.columns])

    def metadata(self) -> _Named:
        return _Named(id=self._table.id, configuration=self._now.properties)

    def protocol(self) -> _Named:
        return _Named()

    def get_add_actions(self, *, flatten: bool = False) -> Any:  # noqa: ARG002
        rows = pa.array([self._now.rows], pa.int64())
        return pa.table({"num_records": rows, "size_bytes": rows})

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Returns the commits, newest first."""
        return list(self._history())[:limit]

    def _history(self) -> Iterator[dict[str, Any]]:
        for number in range(self._at, -1, -1):
            version = self._table.versions[number]
            yield {
                "version": number,
                "operation": version.operation,
                "operationMetrics": {},
                "operationParameters": {"version": str(version.restored)} if version.restored >= 0 else {},
                "userMetadata": version.metadata,
            }


class PlayedDeltalake:
    """Replaces the module `deltalake` in spark_jobs."""

    DeltaTable = PlayedDeltaTable
