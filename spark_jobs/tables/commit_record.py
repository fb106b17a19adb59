"""Writes and reads the metadata that Sluice stores in each Delta commit (`userMetadata`): the batch or snapshot of the commit, with its
start and end positions. Derives the intervals of the stream that were merged into a table from this metadata.

The metadata is part of the commit, so it needs neither Dagster's storage nor any other file. `merge` and `publish` write the metadata.
`sluice history` and `sluice why` read the metadata.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.batch_manifest.values import ChangesSegment, Segment, StagedTable
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.table_owner import Owner, our_record

# For each count, the names under which Delta and deltalake store it in a commit's metrics. Each operation (MERGE; WRITE and INSERT; UPDATE;
# DELETE) uses other names.
METRICS = {
    "rows_inserted": ("numTargetRowsInserted", "numOutputRows", "num_target_rows_inserted", "num_added_rows"),
    "rows_updated": ("numTargetRowsUpdated", "numUpdatedRows", "num_target_rows_updated"),
    "rows_deleted": ("numTargetRowsDeleted", "numDeletedRows", "num_target_rows_deleted"),
}
# For each count, the names under which Delta and deltalake store it in a commit's metrics. Each operation uses other names.
FILE_METRICS = {
    "files_added": ("numTargetFilesAdded", "numAddedFiles", "numFiles", "num_target_files_added", "num_added_files"),
    "files_removed": ("numTargetFilesRemoved", "numRemovedFiles", "num_target_files_removed"),
}
COPIED_METRICS = ("numTargetRowsCopied", "numCopiedRows", "num_target_rows_copied", "num_copied_rows")
SNAPSHOT_KIND = "snapshot"  # The kind of a commit that publishes a snapshot.
MAINTENANCE_KIND = "maintenance"  # The kind of a commit that rewrites or removes files and changes no row.
# The fields of the metadata that are equal in all attempts at one publication. `is_same_publication` recognizes an earlier attempt by them.
PUBLISHED = ("kind", "destination", "ledger", "table", "snapshot", "read", "last_order_key")
ALONE = (SNAPSHOT_KIND, MAINTENANCE_KIND)  # Commits of these kinds are never joined with other commits.


def maintenance_record(owner: Owner, run: str) -> str:
    """Returns the metadata for a commit that rewrites or removes files and changes no row."""
    known = {"sluice": 1, "kind": MAINTENANCE_KIND, "destination": owner.destination, "ledger": owner.ledger_id}
    return json.dumps({**known, "table": owner.table, "run": run}, sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommittedInterval:
    """One commit of a table, or all commits of one batch or backfill together. Times are microseconds since 1970 UTC. A commit that Sluice
    did not make has no `table` and no positions.

    - `version_before` and `version` are the table's versions before the first commit and after the last one.
    - `start` and `end` are positions in the form of the manifest.
    - `inserts`, `updates` and `deletes` count changes in the source. `rows_inserted`, `rows_updated` and `rows_deleted` count what Delta
      changed after the changes of each key were folded.
    - `operation` is Delta's name of the operation, and `committed_at_us` is Delta's time of the commit.
    - `run` is the id of the Dagster run. `snapshot` is the id of a published snapshot.
    - `kind` is the kind of the commit. A swap (`sluice lake swap`) replaces the table's rows by those of another Delta table, which
      contains a past state of the table. `past_state` is the id of this other Delta table.
    - `backfill` is the id of a backfill or repair, or the path of the past state of a swap. `from_us` and `to_us` are the interval of a
      backfill or repair. For a repair, `from_us` is the time at which the rows were read.
    """

    version_before: int
    version: int
    operation: str
    committed_at_us: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    table: str = ""
    destination: str = ""
    ledger: str = ""
    epoch: int = 0
    delivery: int = 0
    run: str = ""
    server_uuid: str = ""
    start: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    end: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = ""
    snapshot: str = ""
    past_state: str = ""
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    first_order_key: int = -1
    last_order_key: int = -1
    first_commit_time_us: int = 0
    last_commit_time_us: int = 0
    backfill: str = ""
    from_us: int = 0
    to_us: int = 0

    @property
    def ours(self) -> bool:
        """Whether Sluice made the commit."""
        return bool(self.table)

    @property
    def batch(self) -> tuple[str, int, int, str]:
        """The values that are equal in all commits of one delivery, backfill or repair."""
        return self.ledger, self.epoch, self.delivery, self.backfill

    @property
    def streamed(self) -> bool:
        """Whether the merge of a batch or the publication of a snapshot made the commit, and not a backfill, repair, swap or maintenance.
        A search for a position of the stream considers only such commits.
        """
        return self.ours and not self.backfill and self.kind != MAINTENANCE_KIND

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitCounts:
    """What commits changed, from Delta's metrics. `rows_copied` are unchanged rows that were rewritten. `files_scanned` are the table's
    files that a merge read, and `files_pruned` are those that it skipped by the statistics of the key.
    """

    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_copied: int = 0
    files_added: int = 0
    files_removed: int = 0
    files_scanned: int = 0
    files_pruned: int = 0

    def __add__(self, other: CommitCounts) -> CommitCounts:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return CommitCounts(
            **dict(
                zip((f.name for f in dataclasses.fields(self)), map(sum, zip(mine, theirs, strict=True)), strict=True)
            )
        )


def commit_record(batch: StagedBatch, staged: StagedTable, segment: Segment, run: str = "") -> str:
    """Returns the metadata of one segment's commit, as JSON text."""
    record: dict[str, Any] = {
        "sluice": 1,
        "destination": batch.destination,
        "ledger": batch.ledger_id,
        "table": staged.name,
        "epoch": batch.epoch,
        "delivery": batch.delivery,
        "run": run,
        "server_uuid": _server(batch.end),
        "start": batch.start,
        "end": batch.end,
        **_of(segment),
        **_backfill(batch),
    }
    return json.dumps(record, sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicationRecord:
    """The metadata of a snapshot's publication.

    - `start` is the position at which reading began. `read_at_us` is the time at which the rows were read, in µs since 1970 UTC.
    - `end` is the ledger's cursor at the publication. `label` is the order key up to which the table includes all changes. `label` may be
      after `end`, because the table also includes buffered changes.
    - `read` names the folder with the files of the rows that were read. Rows that are read again are in another folder.
    """

    destination: str
    ledger: str
    table: str
    snapshot: str
    read: str
    epoch: int
    run: str
    start: Mapping[str, Any]
    end: Mapping[str, Any]
    label: int
    read_at_us: int

    def to_text(self) -> str:
        """Returns the metadata as JSON text."""
        record = dataclasses.asdict(self)
        label, read_at_us = record.pop("label"), record.pop("read_at_us")
        times = dict.fromkeys(("first_commit_time_us", "last_commit_time_us"), read_at_us)
        keys = dict.fromkeys(("first_order_key", "last_order_key"), label)
        known = {"sluice": 1, "kind": SNAPSHOT_KIND, "server_uuid": _server(self.end)}
        return json.dumps({**known, **record, **keys, **times}, sort_keys=True)


def _server(position: Mapping[str, Any]) -> str:
    return str(position.get("server_uuid", ""))


def _backfill(batch: StagedBatch) -> dict[str, Any]:
    if batch.backfill is None:
        return {}
    backfill = batch.backfill
    return {
        "kind": backfill.kind,
        "backfill": backfill.backfill_id,
        "from_us": backfill.from_us,
        "to_us": backfill.to_us,
    }


def _of(segment: Segment) -> dict[str, Any]:
    """Returns the kind of a segment, its first and last order key and commit time, and for a segment of row images the numbers of its
    changes.
    """
    if isinstance(segment, ChangesSegment):
        return {
            "kind": "changes",
            "inserts": segment.inserts,
            "updates": segment.updates,
            "deletes": segment.deletes,
            "first_order_key": segment.first_order_key,
            "last_order_key": segment.last_order_key,
            "first_commit_time_us": segment.first_commit_time_us,
            "last_commit_time_us": segment.last_commit_time_us,
        }
    return {
        "kind": type(segment).__name__.removesuffix("Segment").lower(),
        "first_order_key": segment.order_key,
        "last_order_key": segment.order_key,
        "first_commit_time_us": segment.commit_time_us,
        "last_commit_time_us": segment.commit_time_us,
    }


def read_commit(commit: Mapping[str, Any]) -> CommittedInterval:
    """Parses one entry of Delta's history (`DeltaTable.history`). If Sluice did not make the commit, the result has only what Delta
    reports.
    """
    version = int(commit["version"])
    metrics: Mapping[str, Any] = commit.get("operationMetrics") or {}
    known: dict[str, Any] = {
        "version_before": version - 1,
        "version": version,
        "operation": str(commit.get("operation", "")),
        "committed_at_us": int(commit.get("timestamp") or 0) * 1000,
        **row_counts(metrics),
    }
    record = our_record(commit)
    names = {field.name for field in dataclasses.fields(CommittedInterval)} - known.keys()
    return CommittedInterval(**known, **{name: value for name, value in record.items() if name in names})


def own_commit(commits: Iterable[Mapping[str, Any]], user_metadata: str) -> Mapping[str, Any] | None:
    """Returns the commit in Delta's history that has this metadata, or None."""
    return next((each for each in commits if each.get("userMetadata") == user_metadata), None)


def is_another_try(commit: Mapping[str, Any], user_metadata: str) -> bool:
    """Returns whether another attempt at the merge with the metadata `user_metadata` made this commit. This is the case if both name the
    same ledger and source table, and the commit has changes up to the same order key or a later one.
    """
    theirs, ours = our_record(commit), our_record({"userMetadata": user_metadata})
    same = bool(ours) and all(theirs.get(name) == ours.get(name) for name in ("ledger", "table"))
    return same and _up_to(theirs) >= _up_to(ours)


def is_same_publication(commit: Mapping[str, Any], user_metadata: str) -> bool:
    """Returns whether a commit in Delta's history has already published the rows and changes of the publication with this metadata. If so,
    the caller makes no second commit. A run that was killed after its commit may have made the first one.
    """
    theirs, ours = our_record(commit), our_record({"userMetadata": user_metadata})
    return "read" in theirs and all(theirs.get(name) == ours.get(name) for name in PUBLISHED)


def _up_to(record: Mapping[str, Any]) -> int:
    return max(int(record.get(name, -1)) for name in ("last_order_key", "label"))


def counts_of(commit: Mapping[str, Any]) -> CommitCounts:
    """Returns what a commit in Delta's history changed."""
    metrics = commit.get("operationMetrics") or {}
    files = {name: first_count(metrics, keys) for name, keys in FILE_METRICS.items()}
    return CommitCounts(**row_counts(metrics), rows_copied=first_count(metrics, COPIED_METRICS), **files)


def row_counts(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Returns how many rows a commit inserted, updated and deleted, by the names in `METRICS`. `metrics` are Delta's metrics of the commit.
    Their numbers are text.
    """
    return {name: first_count(metrics, keys) for name, keys in METRICS.items()}


def first_count(metrics: Mapping[str, Any], keys: Iterable[str]) -> int:
    """Returns the count under the first of these names that exists, or 0 if none exists."""
    return next((int(metrics[key]) for key in keys if key in metrics), 0)


def batches(commits: Iterable[CommittedInterval]) -> list[CommittedInterval]:
    """Joins the commits of each batch, backfill or repair into one interval, and returns the intervals in the order of versions.
    Publications, maintenance, and commits by other programs stay separate.
    """
    found: dict[Any, CommittedInterval] = {}
    for commit in sorted(commits, key=lambda each: each.version):
        name = commit.batch if commit.ours and commit.kind not in ALONE else commit.version
        found[name] = _joined(found[name], commit) if name in found else commit
    return sorted(found.values(), key=lambda each: each.version)


def _joined(first: CommittedInterval, then: CommittedInterval) -> CommittedInterval:
    sums = {
        name: getattr(first, name) + getattr(then, name)
        for name in ("inserts", "updates", "deletes", "rows_inserted", "rows_updated", "rows_deleted")
    }
    kinds = list(dict.fromkeys([*first.kind.split(", "), *then.kind.split(", ")]))
    return dataclasses.replace(
        then,
        **sums,
        kind=", ".join(each for each in kinds if each),
        version_before=first.version_before,
        first_order_key=first.first_order_key,
        first_commit_time_us=min(first.first_commit_time_us, then.first_commit_time_us),
        last_commit_time_us=max(first.last_commit_time_us, then.last_commit_time_us),
    )
