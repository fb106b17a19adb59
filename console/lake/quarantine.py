"""Implements `sluice quarantine`: shows values that could not be decoded, and writes them into the lake when they can be decoded.

A replay decodes each value with the installed version of Sluice and the table's current settings (`charsets`, `zero_dates`). A value that
was written into the lake is removed from the quarantine. A value stays in the quarantine if it still cannot be decoded, or if its row has
changed in the meantime.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import TableNotFoundError
from rich.table import Table

from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, ValueRefusedError, Values, type_of
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables, read_ledger, run_lock
from sluice.cdc_engine.staging.quarantine import column_of
from sluice.console.source.query import require_destination
from sluice.console.toolchain.errors import SetupError
from sluice.orchestration.base.lake_settings import lake_error_line, spark_settings, storage_options, target
from sluice.orchestration.run.spark_merge import KeptRecords
from sluice.spark_jobs.errors import SparkUnavailableError, TableError
from sluice.spark_jobs.table_owner import Owner

RAW_SHOWN = 24  # `render` shows at most this many bytes of a value.
VALUES_A_DELETE = 200
SESSIONS_FILE = "quarantine-sessions.json"
# A replay waits at most this many seconds for the run lock, and then fails. A draining run releases the lock after each batch, so a replay
# gets the lock if a batch takes less time than this.
RUN_LOCK_SECONDS = 30.0
Record = dict[str, Any]
# Why a value is refused if conf/ now has `rows`, `masks` or a transform for the table: the value was stored without them, so it is not
# masked, and its row may not be captured any more.
RULED = (
    "conf/ now filters, masks or transforms the rows of the table (rows, masks, transform): re-snapshot the "
    "table instead (`sluice snapshot start`)"
)
NO_CURRENT_STATE = (
    "the table has no current-state table, and Sluice never rewrites a change log or history: re-snapshot "
    "the table instead (`sluice snapshot start`)"
)
# Why a value is refused if the table is a shard: the common Delta table has rows of several shards, so the key and the order key in the
# record of the value do not identify the value's row. Rows of other shards may have the same key, and rows of other destinations may have
# the same order key.
SHARED = (
    "the table is a shard, so Sluice cannot find the row of the value in the common Delta table: re-snapshot the "
    "table instead (`sluice snapshot start`)"
)


@dataclasses.dataclass
class Replayed:
    """The result of a replay for one column of a table. `put_back` is the number of values that were written into the lake. `superseded` is
    the number of values whose rows have changed, so that the values are not needed. `refused` is the number of values that cannot be
    decoded or written. `reason` is the reason of one refused value, or empty.
    """

    table: str
    column: str
    put_back: int = 0
    superseded: int = 0
    refused: int = 0
    reason: str = ""


def quarantined(config: SluiceConfig, destination: str, table: str = "") -> list[Record]:
    """Returns the quarantined values of a destination, in the order of the stream. `table` is a "database.table", or
    empty for all tables.
    """
    require_destination(config, destination)
    try:
        log = _log(config, destination)
    except TableNotFoundError:
        return []
    records: list[Record] = pa.table(log.scan()).to_pylist()
    chosen = (each for each in records if table in {"", _name(each)})
    return sorted(chosen, key=lambda each: (each["order_key"], each["image"], each["column"]))


def to_json(record: Record) -> Record:
    """Converts a record for `--json`. Bytes become hexadecimal digits, and times become ISO text."""
    shown = {**record, "raw": record["raw"].hex(), "commit_time": record["commit_time"].isoformat()}
    del shown["layout"]
    return shown


def render(records: Iterable[Record]) -> Table:
    shown = Table("table", "column", "key", "bytes", "reason", "position", "committed")
    for record in records:
        raw = record["raw"]
        digits = raw[:RAW_SHOWN].hex(" ") + (" …" if len(raw) > RAW_SHOWN else "")
        location = f"{record['file']}:{record['offset']}"
        reason, when = record["reason"], record["commit_time"].isoformat(" ", "seconds")
        shown.add_row(_name(record), record["column"], record["key"], digits, reason, location, when)
    return shown


def replay(config: SluiceConfig, destination: str, table: str = "") -> list[Replayed]:
    """Decodes the quarantined values of a destination again, and writes the values that can be decoded now into the lake. `table` is a
    "database.table", or empty for all tables. Returns one result for each column, or several if the values of a column have different
    types. Raises RunLockTimeoutError if runs hold the run lock for RUN_LOCK_SECONDS, and SetupError if Spark does not answer.
    """
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.session import open_sessions  # noqa: PLC0415

    directory = config.destination_dir(destination)
    spark = dataclasses.replace(spark_settings(config, destination), sessions_file=directory / SESSIONS_FILE)
    with run_lock(directory, RUN_LOCK_SECONDS) as refusal:
        records = quarantined(config, destination, table)
        if not records:
            return []
        try:
            with open_sessions(spark, 1, Fence(refusal)) as (session,):
                return [_replay_column(config, destination, session, each) for each in _columns(records)]
        except SparkUnavailableError as error:
            raise SetupError(str(error)) from error


def render_replayed(results: Iterable[Replayed]) -> Table:
    shown = Table("table", "column", "put back", "the row has changed since then", "still refused", "why")
    for each in results:
        shown.add_row(each.table, each.column, str(each.put_back), str(each.superseded), str(each.refused), each.reason)
    return shown


def _columns(records: list[Record]) -> Iterator[list[Record]]:
    """Yields the records in groups. All records of a group have the same table, column and column type (`layout`)."""

    def column_of(record: Record) -> tuple[str, str, str]:
        return _name(record), record["column"], record["layout"]

    for _, group in itertools.groupby(sorted(records, key=column_of), column_of):
        yield list(group)


def _replay_column(config: SluiceConfig, destination: str, session: Any, records: list[Record]) -> Replayed:
    from sluice.spark_jobs.quarantine.replay import RowValues, put_back  # noqa: PLC0415  pyspark takes a second to import

    first = records[0]
    options = config.destinations[destination].table(first["database"], first["table"])
    result = Replayed(_name(first), first["column"])
    if options.has_rules:
        return dataclasses.replace(result, refused=len(records), reason=RULED)
    if not options.current_state:
        return dataclasses.replace(result, refused=len(records), reason=NO_CURRENT_STATE)
    if config.destinations[destination].shard(first["database"], first["table"]) is not None:
        return dataclasses.replace(result, refused=len(records), reason=SHARED)
    column = column_of(first["layout"])
    column = dataclasses.replace(column, charset=options.charsets.get(column.name.lower(), column.charset))
    decoded: dict[int, Any] = {}  # Index of a record → the decoded value.
    try:
        kind = type_of(column, options.zero_dates)
    except TypeUnsupportedError as error:
        return dataclasses.replace(result, refused=len(records), reason=str(error))
    for number, record in enumerate(records):
        try:
            value = kind.finish(_one(record["raw"]))
        except ValueRefusedError as error:
            result.refused, result.reason = result.refused + 1, error.reason
        else:
            decoded[number] = value
    if not decoded:
        return result
    # If the table has no key, all columns together identify a row, so `key` of the record also contains the column of the value.
    keyed = column.name not in json.loads(first["key"])
    values, names = _values(records, decoded, keyed=keyed)
    with tempfile.TemporaryDirectory(dir=config.destination_dir(destination)) as folder:
        file = Path(folder) / "values.parquet"
        pq.write_table(values, file)
        given = RowValues(file=file, type_name=kind.spark, names=names, keyed=keyed)
        try:
            found = put_back(_table(config, destination, session, result.table), column.name, given)
        except TableError as error:
            return dataclasses.replace(result, refused=len(records), reason=lake_error_line(config, error.reason))
    _forget(config, destination, session.fence, first, [records[number] for number in sorted(found)])
    return dataclasses.replace(result, put_back=len(found), superseded=len(decoded) - len(found))


def _table(config: SluiceConfig, destination: str, session: Any, name: str) -> Any:
    from sluice.spark_jobs.quarantine.replay import ReplayedTable  # noqa: PLC0415

    directory = config.destination_dir(destination)
    return ReplayedTable(
        session=session,
        owner=Owner(ledger_id=read_ledger(directory).ledger_id, destination=destination, table=name),
        target=target(config, destination, name),
        records=KeptRecords(LakeTables(directory)),
        storage_options=storage_options(config.storage_options),
    )


def _values(records: list[Record], decoded: dict[int, Any], *, keyed: bool) -> tuple[pa.Table, list[str]]:
    """Returns the decoded values in the form that `put_back` needs, and the names of the columns that identify their rows. `decoded` maps
    an index of `records` to the decoded value.

    `keyed` says whether the table has a key. With a key, returns only the last of several values that one row had in one transaction.
    Without a key, all columns except the column of the values identify a row.
    """
    rows = {number: json.loads(records[number]["key"]) for number in decoded}
    last = {(records[number]["order_key"], records[number]["key"]): number for number in decoded}
    chosen = sorted(last.values()) if keyed else list(decoded)
    names = [name for name in rows[chosen[0]] if keyed or name != records[0]["column"]]
    columns: dict[str, Any] = {
        "number": pa.array(chosen, pa.int64()),
        "order_key": pa.array([records[number]["order_key"] for number in chosen], pa.int64()),
        "value": pa.concat_arrays([decoded[number] for number in chosen]),
    }
    for index, name in enumerate(names):
        texts = [None if rows[number].get(name) is None else str(rows[number][name]) for number in chosen]
        columns[f"named_{index}"] = pa.array(texts, pa.string())
    return pa.table(columns), names


def _one(raw: bytes) -> Values:
    buffer = np.frombuffer(raw or b"\0", np.uint8)
    return Values(buffer, np.zeros(1, np.int64), np.array([len(raw)], np.int64))


def _forget(config: SluiceConfig, destination: str, fence: Any, of: Record, records: list[Record]) -> None:
    """Removes `records` from the quarantine, after their values were written into the lake. `of` is a record with the table and column of
    all `records`. `fence` is the fence of the run lock, which the caller must hold.
    """
    same = " AND ".join(f'"{name}" = {_text(of[name])}' for name in ("database", "table", "column"))
    for part in _parts(records):
        these = " OR ".join(f"(order_key = {each['order_key']} AND image = {each['image']})" for each in part)
        log = _log(config, destination)
        fence.check(_name(of))
        log.delete(f"{same} AND ({these})")


def _parts(records: list[Record]) -> Iterator[list[Record]]:
    """Divides the records into groups that are small enough for one SQL condition."""
    yield from (records[start : start + VALUES_A_DELETE] for start in range(0, len(records), VALUES_A_DELETE))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _log(config: SluiceConfig, destination: str) -> deltalake.DeltaTable:
    options = storage_options(config.storage_options)
    return deltalake.DeltaTable(config.quarantine_path(destination), storage_options=options or None)


def _name(record: Record) -> str:
    return f"{record['database']}.{record['table']}"
