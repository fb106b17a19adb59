"""Implements `sluice why`: shows the changes of one row with values, commit time, batch and run. Finds the changes in the versions of the
Delta table.

Begins with the row in the newest version. A row has the order key of its last change, and each commit records the range of its order keys.
So the row's order key shows which commit wrote the row. Then reads the row in the version before this commit, and so on. If a version lacks
the row, finds the newest earlier commit that may have deleted the row, and continues with the version before this commit.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from deltalake.exceptions import DeltaError
from rich.table import Table

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.position import position_text
from sluice.console.lake.history import HistoryTable, moment
from sluice.console.toolchain.errors import SetupError
from sluice.spark_jobs.sql_text import double_quoted, spark_type
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, OPERATION, ORDER_KEY
from sluice.spark_jobs.tables.commit_record import CommittedInterval, read_commit

LOOKS_MAX = 500
ENDED = (
    "the search ended before version {at} of the table, after {looks} steps, and the row may have earlier changes, which are not shown: to "
    "see them, read earlier versions of the table, for example in Spark with `VERSION AS OF {at}`"
)
SNAPSHOT = "read by a snapshot"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
OURS = (ORDER_KEY, COMMIT_TIME, OPERATION, DELETED)
Row = Mapping[str, Any]


class GoneError(Exception):
    """Raised if older changes of a row remain unknown: a version of the table cannot be read any more, for example because VACUUM has
    removed its files, or the search has made LOOKS_MAX steps.
    """


class RowVersions(Protocol):
    """Reads one row in any version of the table."""

    def row(self, version: int) -> Row | None:
        """Returns the row in a version, including Sluice's own columns, or None if the version lacks the row. Raises GoneError if the
        version cannot be read.
        """


@dataclasses.dataclass(frozen=True)
class LifeStep:
    """One change of the row. `happened` is "insert", "update", "delete" or "delete (marked)", or says that a snapshot read the row, or that
    this is the oldest known state. `values` are the row's values after the change, or, for a delete, the values before it. `commit` is None
    if the Delta log no longer contains the commit. `committed_at` is the time at which the source committed the change, or None if this
    time is unknown.
    """

    happened: str
    values: Row
    commit: CommittedInterval | None
    committed_at: Any

    def to_json(self) -> dict[str, Any]:
        commit = self.commit.to_json() if self.commit else None
        values = {name: str(value) if value is not None else None for name, value in self.values.items()}
        return {
            "happened": self.happened,
            "values": values,
            "committed_at": str(self.committed_at or ""),
            "commit": commit,
        }


def life(versions: RowVersions, commits: Sequence[CommittedInterval]) -> Iterator[LifeStep]:
    """Yields the changes of a row, newest first. `commits` are the commits in the Delta log that may have changed the row, newest first.
    Raises GoneError after LOOKS_MAX steps of the search, each of which reads one or two versions.
    """
    at, looks = (commits[0].version if commits else -1), 0
    while at >= 0:
        looks += 1
        if looks > LOOKS_MAX:
            raise GoneError(ENDED.format(at=at, looks=LOOKS_MAX))
        row = versions.row(at)
        if row is not None:
            commit = _commit_of(commits, int(row[ORDER_KEY]), at)
            if commit is None:
                yield _step("the oldest version that the log has", row, None)
                return
            before = _look(versions, commit.version - 1)
            # The range of a backfill's commit can contain the row's order key although the backfill did not write the row. If the row was
            # the same before this commit, the search continues with the earlier commits.
            if commit.backfill and before == row:
                at = commit.version - 1
                continue
            yield _step(_happened(row, before), row, commit)
            at = commit.version - 1
            continue
        gone = next((each for each in commits if each.version <= at and _may_delete(each)), None)
        if gone is None:
            return
        there = _look(versions, gone.version - 1)
        if there is not None:
            yield _step("delete", there, gone)
        at = gone.version - 1


def _look(versions: RowVersions, version: int) -> Row | None:
    return versions.row(version) if version >= 0 else None


def _commit_of(commits: Sequence[CommittedInterval], order_key: int, at: int) -> CommittedInterval | None:
    """Returns the newest commit up to version `at` whose range contains the order key, or None if the log has no such commit."""
    return next(
        (each for each in commits if each.version <= at and each.first_order_key <= order_key <= each.last_order_key),
        None,
    )


def _may_delete(commit: CommittedInterval) -> bool:
    return bool(commit.deletes or commit.updates or commit.rows_deleted or commit.kind not in {"", "changes"})


def _happened(row: Row, before: Row | None) -> str:
    if row.get(DELETED):
        return "delete (marked)"
    return "insert" if before is None or before.get(DELETED) else "update"


def _step(happened: str, row: Row, commit: CommittedInterval | None) -> LifeStep:
    values = {name: value for name, value in row.items() if name not in OURS}
    # If a snapshot read the row, only the time of the reading is known. The time at which the source committed the row is unknown.
    if commit is not None and commit.snapshot:
        return LifeStep(f"{happened}, {SNAPSHOT}" if happened == "delete" else SNAPSHOT, values, commit, None)
    when = row.get(COMMIT_TIME) if happened != "delete" or commit is None else moment(commit.last_commit_time_us)
    return LifeStep(happened, values, commit, when)


class TableVersions:
    """Reads versions of a row with deltalake, which skips files that cannot contain the row's key."""

    def __init__(self, table: HistoryTable, key: Mapping[str, str]) -> None:
        self._table = table
        types = {field.name.lower(): (field.name, spark_type(field.type)) for field in table.log().schema().fields}
        self._condition = " AND ".join(_equal(*types[name.lower()], value) for name, value in key.items())

    def row(self, version: int) -> Row | None:
        try:
            found = pa.table(self._table.log(version).scan(predicate=self._condition)).to_pylist()
        except (DeltaError, OSError, pa.ArrowException, SetupError) as error:
            raise GoneError(
                f"the changes up to version {version} of {self._table.path} are unknown, because this version cannot be read: {error}"
            ) from error
        return found[0] if found else None


def row_life(table: HistoryTable, key: str) -> Iterator[LifeStep]:
    """Yields the changes of the row with this key. `key` has the form `5` or `id=5`. For two key columns, it has the form `7,a`, in the
    order of the key columns, or `id=7,name=a`.

    Raises ConfigurationError if the key is malformed. If older versions cannot be read, yields the known changes and then raises GoneError.
    """
    versions = TableVersions(table, {**parse_key(table, key), **table.shard})
    commits = sorted((read_commit(each) for each in table.log().history()), key=lambda each: -each.version)
    return life(versions, [each for each in commits if table.is_concerned_by(each)])


def known_life(table: HistoryTable, key: str) -> tuple[list[LifeStep], str]:
    """Returns the known changes of a row, newest first, and why older changes are unknown, or "" if every version could be read."""
    steps: list[LifeStep] = []
    try:
        steps.extend(row_life(table, key))
    except GoneError as error:
        return steps, str(error)
    return steps, ""


def parse_key(table: HistoryTable, text: str) -> dict[str, str]:
    """Parses a key that a user typed. Returns key column → value. Raises ConfigurationError if the key does not fit the table."""
    if not table.current_state:
        instead = f"query {table.path} with `sluice sql`: it has one row for each version or change of a row"
        raise ConfigurationError(
            f"{table.name} has no current-state table, so the earlier states of a row cannot be shown; {instead}"
        )
    if not table.key:
        raise ConfigurationError(
            f"{table.name} has no key, so its Delta table has every change: query the table with `sluice sql`"
        )
    parts = next(csv.reader([text], skipinitialspace=True), []) if len(table.key) > 1 else [text]
    if len(parts) != len(table.key):
        raise ConfigurationError(
            f"the key of {table.name} is ({', '.join(table.key)}): give {len(table.key)} values with commas between them, in "
            f"this order or as {','.join(f'{name}=…' for name in table.key)}; put a value that contains a comma in double "
            "quotes"
        )
    by_name = dict(_part(part.strip(), table.key) for part in parts)
    if sorted(by_name) == sorted(table.key):
        return by_name
    named = zip(table.key, parts, strict=True)
    return {name: value.strip().removeprefix(f"{name}=") for name, value in named}


def _part(part: str, key: Sequence[str]) -> tuple[str, str]:
    """Parses one value of a key, and returns (key column, value). `part` is `column=value`, or only a value. If `part` does not begin with
    the name of a key column and `=`, returns ("", `part`).
    """
    name, equals, value = part.partition("=")
    column = next((each for each in key if equals and each.lower() == name.strip().lower()), "")
    return column, value if column else part


def _equal(name: str, kind: str, value: str) -> str:
    """Returns the condition that a key column has a value, which a user typed. Raises ConfigurationError if the column cannot have this
    value. The error of the query would look like a version of the table that cannot be read.
    """
    column = double_quoted(name)
    if kind.partition("(")[0] in NUMBERS:
        if not NUMBER.fullmatch(value):
            raise _refused(name, kind, value, "a number")
        return f"{column} = {value}"
    if kind == "binary":
        return f"{column} = X'{_digits(name, kind, value)}'"
    literal = "'" + value.replace("'", "''") + "'"
    if kind == "string":
        return f"{column} = {literal}"
    if kind != "boolean":
        try:
            dt.datetime.fromisoformat(value)
        except ValueError:
            raise _refused(name, kind, value, "a date or time in ISO form") from None
    return f"{column} = CAST({literal} AS {_sql_type(kind)})"


def _digits(name: str, kind: str, value: str) -> str:
    """Returns the hexadecimal digits of a value that a user typed, with or without `0x`, or as a UUID with hyphens."""
    digits = value.lower().removeprefix("0x").replace("-", "")
    try:
        return bytes.fromhex(digits).hex()
    except ValueError:
        raise _refused(name, kind, value, "hexadecimal digits, two for each byte, or a UUID") from None


def _refused(name: str, kind: str, value: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"the key column {name} has the type {kind}, and {value!r} is not {wanted}: give {wanted} for this column"
    )


def _sql_type(kind: str) -> str:
    return {"timestamp_ntz": "TIMESTAMP", "date": "DATE", "boolean": "BOOLEAN"}.get(kind, "TIMESTAMP WITH TIME ZONE")


def render(steps: Sequence[LifeStep]) -> Table:
    shown = Table("happened", "committed in the source", "values", "version", "batch", "up to", "run")
    for index, step in enumerate(steps):
        before = steps[index + 1].values if index + 1 < len(steps) else {}
        commit = step.commit
        shown.add_row(
            step.happened,
            str(step.committed_at or "") or _read_time(commit),
            _changed(step, before),
            str(commit.version) if commit else "",
            str(commit.delivery) if commit else "",
            position_text(commit.end) if commit else "",
            commit.run[:8] if commit else "",
        )
    return shown


def _read_time(commit: CommittedInterval | None) -> str:
    """Returns the text that is shown instead of an unknown commit time. If a snapshot read the row, the source committed the row before the
    snapshot, so the text names the snapshot's time. Returns "" if no snapshot read the row.
    """
    return (
        f"before {moment(commit.last_commit_time_us)}, the time of the snapshot" if commit and commit.snapshot else ""
    )


def _changed(step: LifeStep, before: Row) -> str:
    """Returns the values that are shown for a step: only the changed values of an updated row, and all values for any other step. `before`
    has the row's values before the step, and is empty if they are unknown.
    """
    whole = not step.happened.startswith("update")
    pairs = ((name, value) for name, value in step.values.items() if whole or before.get(name) != value)
    return ", ".join(f"{name}={value}" for name, value in pairs)
