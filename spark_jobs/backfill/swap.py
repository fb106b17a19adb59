"""Replaces the rows of a live table by those of a past state, in one commit. A past state is a Delta table that `sluice backfill --into`
built. A Dagster run calls this module.

The live table keeps its id, owner, properties, and the Delta transactions that record how much of the stream was merged. So later changes
are merged as usual. To undo the commit, use RESTORE and `sluice lake accept`.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.spark_jobs.backfill.into import MARK, streamed
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import TableError, unreadable_log
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.sql_text import double_quoted
from sluice.spark_jobs.staged_batch import BACKFILL_KIND, QUARANTINE_KIND, REPAIR_KIND
from sluice.spark_jobs.table_owner import Owner, TableRecord, TableRecords, refuse_others, was_replaced
from sluice.spark_jobs.tables.commit_record import SNAPSHOT_KIND, CommittedInterval, batches, read_commit
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.tables.exact_bounds import writer_properties

SWAP_KIND = "swap"
# The kind of a commit that corrects rows → what made the commit, for a message.
CORRECTIONS = {
    **{kind: f"a {kind}" for kind in (BACKFILL_KIND, REPAIR_KIND)},
    SWAP_KIND: "the swap with another past state",
    QUARANTINE_KIND: "`sluice quarantine replay`",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PastTable:
    """A Delta table with a past state, as its Delta log describes it.

    - `of` is the "database.table" whose past state the table has, or is empty if the table is not a past state.
    - `ledger` is the id of the ledger under which the past state was built.
    - `base` is the version of the live table from which the past state was built.
    - `up_to` is the position up to which the past state has all changes, in the form of the manifest.
    - `columns` are pairs of name and Spark type.
    - `table_id` is the id of the Delta table. Another past state at the same path has another id.
    - `version` is the newest version of the table. The backfill built version 0, so a higher version shows a later change.
    - `log` is the table, opened with deltalake.
    """

    path: str
    of: str = ""
    ledger: str = ""
    base: int = -1
    up_to: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    columns: tuple[tuple[str, str], ...] = ()
    table_id: str = ""
    version: int = -1
    rows: int = 0
    log: Any = dataclasses.field(default=None, compare=False)


def read_rebuilt(path: str, storage_options: Mapping[str, str]) -> PastTable:
    """Reads the past state at a path from its Delta log. If there is no table, or the table is not a past state, `of` is empty in the
    result. Raises TableError if the log cannot be read.
    """
    try:
        log = deltalake.DeltaTable(path, storage_options=dict(storage_options) or None)
        metadata = log.history()[-1].get("userMetadata") or "{}"
        record = json.loads(str(metadata)) if str(log.metadata().name or "").startswith(f"{MARK}/") else {}
        table = DeltaTable("", path, "", storage_options)
        table.refresh()
    except TableNotFoundError:
        return PastTable(path=path)
    except (DeltaError, OSError, ValueError) as error:
        raise TableError(path, unreadable_log(path, error)) from error
    return PastTable(
        path=path,
        of=str(record.get("past_of", "")),
        ledger=str(record.get("ledger", "")),
        base=int(record.get("version", -1)),
        up_to=record.get("up_to") or {},
        columns=table.snapshot.schema,
        table_id=table.snapshot.table_id,
        version=table.snapshot.version,
        rows=table.row_count,
        log=log,
    )


def refusal(
    owner: Owner, live: Sequence[tuple[str, str]], rebuilt: PastTable, up_to: int, commits: Sequence[CommittedInterval]
) -> str:
    """Returns why the rows of a past state must not replace the live table's rows, and what to do. Returns "" if the rows may be replaced.

    `live` has the name and the Spark type of each column of the live table, and `commits` are the live table's commits. The past state has
    all changes up to the order key `up_to`.
    """
    return next(_obstacles(owner, live, rebuilt, up_to, commits), "")


def _obstacles(
    owner: Owner, live: Sequence[tuple[str, str]], rebuilt: PastTable, up_to: int, commits: Sequence[CommittedInterval]
) -> Iterator[str]:
    build_again = f"build the past state again with `sluice backfill {owner.destination} … --into`"
    if rebuilt.of != owner.table or not rebuilt.ledger:
        yield f"the Delta table {rebuilt.path} is not a past state of {owner.table}: {build_again}"
    if rebuilt.ledger != owner.ledger_id:
        yield (
            f"the past state was built under the ledger {rebuilt.ledger}, whose positions cannot be compared with "
            f"those of the current ledger: {build_again}"
        )
    if rebuilt.version > 0:
        yield (
            "another program changed the past state after the backfill built it, and the Delta table is now at "
            f"version {rebuilt.version}: {build_again}"
        )
    if sorted(live) != sorted(rebuilt.columns):
        differ = sorted({name for name, _ in set(live) ^ set(rebuilt.columns)})
        instead = "or read the rows from the source with `sluice snapshot start`"
        yield f"the past state and the table have different columns ({', '.join(differ)}): {build_again}, {instead}"
    ours = [each for each in commits if each.ours and each.ledger == owner.ledger_id]
    if later := [each for each in ours if each.streamed and each.last_order_key > up_to]:
        changes = sum(each.inserts + each.updates + each.deletes for each in later)
        yield (
            f"{len(later)} batches with {changes} changes were merged into the table after the time of the "
            f"past state: {build_again}, up to the present time"
        )
    if not commits or min(each.version_before for each in commits) > rebuilt.base:
        yield f"the log of the table no longer has the commits after version {rebuilt.base}: {build_again}"
    # Leaves out earlier swaps with the same past state, because such a swap may be repeated. Includes all commits of `sluice quarantine
    # replay`, because these commits do not record a ledger.
    if corrections := [
        each
        for each in commits
        if each.kind in CORRECTIONS
        and each.version > rebuilt.base
        and (each.ledger == owner.ledger_id or each.kind == QUARANTINE_KIND)
        and (each.kind, each.past_state) != (SWAP_KIND, rebuilt.table_id)
    ]:
        what = f"version {corrections[-1].version} of the table was written by {CORRECTIONS[corrections[-1].kind]}"
        yield (
            f"{what}. The past state was built from version {rebuilt.base} and lacks that correction: keep "
            "the corrected table, and do not swap"
        )
    # The rows before a re-snapshot may be wrong, or have the form of earlier settings in conf/, for example unmasked values.
    if read := [each for each in ours if each.kind == SNAPSHOT_KIND and each.version > rebuilt.base]:
        yield (
            f"version {read[-1].version} of the table was written by a snapshot, and the past state was built from version "
            f"{rebuilt.base}, which has the rows from before this snapshot: keep the table, and do not swap, or {build_again} and a "
            "--from after the snapshot"
        )


def recorded_commits(table: DeltaTable) -> list[CommittedInterval]:
    """Returns what the commits in the table's log record about their origin and their changes. The commits of one batch are joined into one
    element. Commits that the clean-up of the log has deleted are missing.
    """
    return batches(read_commit(commit) for commit in table.commits_after(-1))


def swap(table: DeltaTable, owner: Owner, rebuilt: PastTable, records: TableRecords, fence: Fence, *, run: str) -> int:
    """Replaces the rows of the live table (`table`) by those of the past state `rebuilt`, syncs the commit to disk, and stores the live
    table's record in `records`. Returns the live table's new version. `run` is the id of the run, which the commit stores. The caller holds
    the run lock.

    Raises TableError if the live table has another owner or was replaced, or if the rows cannot be written. The caller can repeat a failed
    swap, which writes the same rows again.
    """
    before = table.snapshot
    refuse_others(owner, table.found(None, owner.to_text()))
    known = records.get(owner.table)
    if known is not None and was_replaced(owner, known, table.found(known, owner.to_text())):
        why = (
            f"the Delta table at {table.path} is not the table that the last run left: restore that table, or "
            f"take over the current one with `sluice lake accept {owner.destination} {shlex.quote(owner.table)}`"
        )
        raise TableError(owner.table, why)
    record, schema = _record(owner, rebuilt, run), pa.schema(table.log.schema().to_arrow())
    names = ", ".join(double_quoted(name) for name in schema.names)
    try:
        rows = QueryBuilder().register("past", rebuilt.log).execute(f"SELECT {names} FROM past")
        fence.check(owner.table)
        write_deltalake(
            table.log,
            pa.RecordBatchReader.from_batches(schema, streamed(rows, schema)),
            mode="overwrite",
            writer_properties=writer_properties(schema),
            commit_properties=CommitProperties(custom_metadata={"userMetadata": record}, max_commit_retries=0),
        )
        after = table.refresh()
        table.own_commit(before.version, record)
        sync_commits(table.path, before.version, after.version)
    except (DeltaError, OSError) as error:
        why = f"the rows of {rebuilt.path} could not be written to {table.path}: {error}; correct the cause and run the swap again"
        raise TableError(owner.table, why, own=False) from error
    records.keep(owner.table, TableRecord(table_id=after.table_id, version=after.version))
    return after.version


def _record(owner: Owner, rebuilt: PastTable, run: str) -> str:
    """Returns the text that Delta's commit history stores for a swap (`run` is the id of the run). The text names no interval of the
    stream, because a swap merges no part of the stream.
    """
    record = {
        "sluice": 1,
        "kind": SWAP_KIND,
        "destination": owner.destination,
        "ledger": owner.ledger_id,
        "table": owner.table,
        "run": run,
        "backfill": rebuilt.path,
        "past_state": rebuilt.table_id,
        "epoch": int(rebuilt.up_to["epoch"]),
        # This entry is not named `end`, because later merges consider the changes up to the `end` of a commit as merged. A swap merges no
        # changes of the stream, so later runs must still merge the stream's changes up to this position.
        "up_to": dict(rebuilt.up_to),
    }
    return json.dumps(record, sort_keys=True)
