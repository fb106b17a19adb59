"""Reads the log of a Delta table in a folder, with the methods of `deltalake.DeltaTable` that `delta_table` needs. `delta_table` calls this
module for small merges.

deltalake takes about half a millisecond of CPU time for each commit since the last checkpoint, each time it opens a table. Reading the same
files here takes a tenth of that. The format is described in https://github.com/delta-io/delta/blob/master/PROTOCOL.md. `read_local_log`
returns None for logs that have anything other than commits and a classic checkpoint in one file; deltalake reads such logs.
"""

from __future__ import annotations

import dataclasses
import decimal
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.table import ProtocolVersions

from sluice.spark_jobs.durable_lake import LAST_CHECKPOINT, LOG, local_folder

COMMIT = re.compile(r"(\d{20})\.json")
# The columns that are read from a checkpoint. Other columns are not needed, for example `add.partitionValues`.
CHECKPOINT_COLUMNS = ["add.path", "add.size", "add.stats", "add.deletionVector", "txn", "metaData", "protocol"]
SIDECAR = "sidecar"  # A checkpoint of version 2 names the files with its rows in this column.
# If a file of a log has more bytes than this, deltalake reads the log, because this module would keep a Python object in memory for each
# value.
BYTES_MAX = 8 << 20
PHYSICAL_NAME = "delta.columnMapping.physicalName"
Action = Mapping[str, Any]
Stamp = tuple[int, int, int]  # Of a file: (inode, time of the last write in ns, size).


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableMetadata:
    """The fields of a `metaData` action that `delta_table` needs."""

    id: str
    configuration: Mapping[str, str]
    partition_columns: tuple[str, ...]


class ParsedLog:
    """The parsed files of one table's log. A file is parsed again only if it was replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parsed: dict[str, tuple[Stamp, list[Action]]] = {}
        self._statistics: dict[str, Action] = {}

    def commit(self, version: int, *, limited: bool = True) -> list[Action]:
        """Returns the actions of a commit. Raises OSError or ValueError if the commit cannot be read. If `limited`, also raises ValueError
        for a commit with more than BYTES_MAX bytes.
        """
        return self._actions(f"{version:020d}.json", _parsed_commit, limited=limited)

    def checkpoint(self, version: int) -> list[Action]:
        """Returns the actions of a classic checkpoint. Raises OSError, ArrowException or ValueError if the checkpoint cannot be read, or
        has more than BYTES_MAX bytes.
        """
        return self._actions(f"{version:020d}.checkpoint.parquet", _parsed_checkpoint, limited=True)

    def statistics(self, text: str) -> Action:
        """Parses the statistics of a data file from their JSON text in the log. Parses each text only once."""
        if text not in self._statistics:
            self._statistics[text] = json.loads(text, parse_float=decimal.Decimal)
        return self._statistics[text]

    def _actions(self, name: str, parse: Callable[[Path], list[Action]], *, limited: bool) -> list[Action]:
        path = self.folder / name
        found = path.stat()
        if limited and found.st_size > BYTES_MAX:
            raise ValueError(f"{path} is too large")
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._parsed.get(name)
        if known is None or known[0] != stamp:
            known = self._parsed[name] = (stamp, parse(path))
        return known[1]


def parsed_log(path: str) -> ParsedLog | None:
    """Returns an object for the log of a table, and reads nothing yet. Returns None if the table is not on this machine."""
    folder = local_folder(path)
    return ParsedLog(folder / LOG) if folder else None


def read_local_log(files: ParsedLog) -> LocalLog | None:
    """Returns the newest version of a table's log. Returns None if the table does not exist, or if deltalake must read its log."""
    try:
        return _read(files)
    # deltalake reads the log instead. Either a file is missing, because the clean-up of the log removed it meanwhile, or a file has an
    # unknown form.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException):
        return None


def _read(files: ParsedLog) -> LocalLog | None:
    commits = sorted(int(found[1]) for each in files.folder.iterdir() if (found := COMMIT.fullmatch(each.name)))
    checkpoint = _last_checkpoint(files.folder)
    if checkpoint is None or not commits:
        return None
    later = [version for version in commits if version > checkpoint]
    if later != list(range(checkpoint + 1, checkpoint + 1 + len(later))):
        return None  # A commit is missing, so this is no complete log.
    log = LocalLog(files, version=checkpoint + len(later))
    if checkpoint >= 0:
        log.apply(files.checkpoint(checkpoint))
    for version in later:
        log.apply(files.commit(version))
    return log if log.is_whole else None


def _last_checkpoint(folder: Path) -> int | None:
    """Returns the version of the last checkpoint, -1 if the log has none, or None if it is not one classic file."""
    try:
        found = json.loads((folder / LAST_CHECKPOINT).read_bytes())
    except FileNotFoundError:
        return -1
    return None if found.get("parts") or found.get("v2Checkpoint") else int(found["version"])


def _parsed_commit(path: Path) -> list[Action]:
    # Bytes are split, not text: `splitlines` of a text would also break lines at U+2028, which JSON strings may contain unescaped.
    return [json.loads(line) for line in path.read_bytes().splitlines() if line]


def _parsed_checkpoint(path: Path) -> list[Action]:
    with pq.ParquetFile(path) as read:
        sidecars = [SIDECAR] if SIDECAR in read.schema_arrow.names else []
        rows = read.read(columns=[*CHECKPOINT_COLUMNS, *sidecars], use_threads=False).to_pylist()
    if any(row.get(SIDECAR) is not None for row in rows):
        raise ValueError(f"{path} has the name of a classic checkpoint, but another content")
    return [{name: action for name, action in row.items() if action is not None} for row in rows]


class LocalLog:
    """The content of a table's log at one version. `apply` adds the actions of a checkpoint or commit. Some methods, such as `metadata`,
    have the names of methods of `deltalake.DeltaTable`. They return results of the same form, with only the parts that `delta_table` uses.
    """

    def __init__(self, files: ParsedLog, *, version: int) -> None:
        self.files, self._version = files, version
        self._metadata: Action = {}
        # The result of `schema`. A `cached_property` has a lock in Python 3.11, so an object with one could not be sent to executors.
        self._schema: Any = None
        self._protocol: Action = {}
        self._transactions: dict[str, int] = {}
        self._adds: dict[tuple[str, str], Action] = {}

    def apply(self, actions: Iterable[Action]) -> None:
        """Applies the actions of the next commit, or those of the checkpoint."""
        for action in actions:
            for name, value in action.items():
                match name:
                    case "add":
                        self._adds[_file_of(value)] = value
                    case "remove":
                        self._adds.pop(_file_of(value), None)
                    case "txn":
                        self._transactions[value["appId"]] = int(value["version"])
                    case "metaData":
                        self._metadata, self._schema = value, None
                    case "protocol":
                        self._protocol = value

    @property
    def is_whole(self) -> bool:
        """Whether the log has a schema and a protocol, as every log must."""
        return bool(self._metadata and self._protocol)

    def version(self) -> int:
        return self._version

    def schema(self) -> Any:
        if self._schema is None:
            self._schema = deltalake.Schema.from_json(self._metadata["schemaString"])
        return self._schema

    def metadata(self) -> TableMetadata:
        found = self._metadata
        return TableMetadata(
            id=str(found["id"]),
            configuration=dict(found.get("configuration") or {}),
            partition_columns=tuple(found.get("partitionColumns") or ()),
        )

    def protocol(self) -> ProtocolVersions:
        found = self._protocol
        return ProtocolVersions(
            int(found["minReaderVersion"]),
            int(found["minWriterVersion"]),
            found.get("writerFeatures"),
            found.get("readerFeatures"),
        )

    def transaction_version(self, app_id: str) -> int | None:
        return self._transactions.get(app_id)

    def history(self, limit: int) -> list[dict[str, Any]]:
        """Returns the `commitInfo` of the newest `limit` commits, the newest first. Ends before a commit that the log no longer has. Raises
        OSError or ValueError if a commit cannot be read.
        """
        found: list[dict[str, Any]] = []
        for version in range(self._version, max(self._version - limit, -1), -1):
            # A commit that cannot be read raises an error, because a commit of another program must not be overlooked.
            try:
                actions = self.files.commit(version, limited=False)
            except FileNotFoundError:
                break
            infos: Iterator[Action] = (action["commitInfo"] for action in actions if "commitInfo" in action)
            found.append({**next(infos, {}), "version": version})
        return found

    def marked_rows(self) -> int:
        """Returns the number of rows that deletion vectors delete."""
        vectors = (add.get("deletionVector") for add in self._adds.values())
        return sum(int(vector["cardinality"]) for vector in vectors if vector)

    def get_add_actions(self, *, flatten: bool, column: str | None = None) -> pa.Table:
        """Returns the files of the table with their sizes, their row counts, and the bounds of integer, decimal and string columns. The
        bounds have the columns' physical names. `column` is the only column that gets bounds; None means all columns, and "" no column.
        """
        if not flatten:
            raise NotImplementedError
        adds = [*self._adds.values()]
        stats = [self.files.statistics(add.get("stats") or "{}") for add in adds]
        columns = {
            "path": pa.array([add["path"] for add in adds], pa.string()),
            "size_bytes": pa.array([add["size"] for add in adds], pa.int64()),
            "num_records": pa.array([each.get("numRecords") for each in stats], pa.int64()),
        }
        for field in pa.schema(self.schema().to_arrow()) if column != "" else ():
            name = physical_name(field)
            if column in {None, name} and _is_bounded(field.type):
                columns |= _bounds(name, field.type, stats)
        return pa.table(columns)


def physical_name(field: Any) -> str:
    """Returns the name that a column has in Parquet files and in statistics. `field` is an Arrow field of deltalake's schema."""
    return str((field.metadata or {}).get(PHYSICAL_NAME.encode(), field.name.encode()).decode())


def _file_of(action: Action) -> tuple[str, str]:
    """Returns what identifies a file in a log: its path and its deletion vector."""
    vector = action.get("deletionVector")
    if not vector:
        return action["path"], ""
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def _is_bounded(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_string(kind))


def _bounds(name: str, kind: Any, stats: Sequence[Action]) -> dict[str, Any]:
    """Returns the minima and maxima of a column in the files. Returns {} if no file has them, or if they do not fit into the column's type.
    Without minima and maxima, no file is skipped.
    """
    low, high = ([(each.get(bound) or {}).get(name) for each in stats] for bound in ("minValues", "maxValues"))
    if not any(value is not None for value in (*low, *high)):
        return {}
    try:
        return {f"min.{name}": pa.array(low, kind), f"max.{name}": pa.array(high, kind)}
    except (pa.ArrowException, TypeError, ValueError):
        return {}
