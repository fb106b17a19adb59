"""Executes an operator's decision about a stopped table: to approve a pending schema change, to set the table's schema, or to resume the
table. `approve`, `resolve` and `resume` store the decision, and request that the running engine resumes the table. `states.acts_on` defines
which of these acts a table's state allows.
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.meta.resume_requests import ResumeKind, request, requests
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import OperatorAct, TableState, acts_on, way_out
from sluice.cdc_engine.table_meta.change.evolution import CannotFollowError, created
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL
from sluice.cdc_engine.table_meta.ddl.reader import read_statement
from sluice.cdc_engine.table_meta.ddl.statement import CreateTable, TableName, Unread
from sluice.cdc_engine.table_meta.history.resolutions import Resolutions
from sluice.cdc_engine.table_meta.history.review_files import PendingRecord, ReviewFiles
from sluice.cdc_engine.table_meta.schema import TableSchema


@dataclasses.dataclass(frozen=True, kw_only=True)
class PendingSchemaChange:
    """A table in the state DDL_HELD. `record` describes the schema change that waits for approval, or is None if this record is missing.
    `approved` is the plan that an operator has approved and that the engine has not read yet, or empty.
    """

    stop: StoppedTable
    record: PendingRecord | None
    approved: str = ""


def pending_changes(directory: Path) -> list[PendingSchemaChange]:
    """Returns the schema changes of a destination that wait for approval."""
    files = ReviewFiles(directory)
    return [
        _pending(files, stop) for stop in read_ledger(directory).stopped_tables if stop.state == TableState.DDL_HELD
    ]


def _pending(files: ReviewFiles, stop: StoppedTable) -> PendingSchemaChange:
    record = files.pending(stop)
    approved = files.approved(stop.database, stop.table, record.order_key) if record else ""
    return PendingSchemaChange(stop=stop, record=record, approved=approved)


def stop_of(directory: Path, table: str, *, position: str = "") -> StoppedTable:
    """Returns the stop of a "database.table". `position` is the position of the stop that the operator has seen, or empty to accept a stop
    at any position.

    Raises ActRefusedError if the table has not stopped, if a snapshot reads it, or if it has stopped at another position.
    """
    for stop in read_ledger(directory).stopped_tables:
        if f"{stop.database}.{stop.table}" == table:
            if position and str(stop.position) != position:
                raise ActRefusedError(
                    f"nothing was changed: your decision is about the stop of {table} at {position}, but {table} of "
                    f"{directory.name} is now stopped at {stop.position} in the state {stop.state} ({stop.reason}). "
                    "Decide about the present stop"
                )
            return stop
    snapshot = SnapshotRecords(directory).get(table)
    if snapshot is not None and snapshot.is_open:
        raise ActRefusedError(
            f"the table {table} of {directory.name} has not stopped: its snapshot is {snapshot.state}. If the "
            "snapshot was canceled, the engine ends the snapshot within seconds; wait until `sluice snapshot "
            "status` shows CANCELED and `sluice status` shows the stopped table, then resume the table"
        )
    raise ActRefusedError(
        f"the table {table} of {directory.name} has not stopped; `sluice status` lists the stopped tables"
    )


def resumed_next(directory: Path) -> frozenset[str]:
    """Returns the tables, as "database.table", that operators requested to resume and that the engine has not resumed yet. Raises MetaError
    if the requests cannot be read.
    """
    return frozenset(each.name for each in requests(directory) if each.kind is ResumeKind.RESUME)


def resume(directory: Path, table: str, *, position: str = "") -> StoppedTable:
    """Requests that the engine resumes a stopped table. `position` is the position of the stop that the operator has seen, or empty to
    accept a stop at any position. Raises ActRefusedError if the table has not stopped, if a snapshot reads the table, or if the table has
    stopped at another position.
    """
    stop = stop_of(directory, table, position=position)
    request(directory, stop.database, stop.table)
    return stop


def approve(directory: Path, table: str, plan: str, *, position: str = "", replaces: bool = True) -> PendingRecord:
    """Stores the plan that an operator approves for a pending schema change, and requests that the table resumes. `position` is the
    position of the statement that the operator has seen, or empty to accept a statement at any position. `replaces`: whether the plan may
    replace another plan that was approved and that the engine has not read yet.

    Raises ActRefusedError if no change is pending, if the pending statement is at another position, if the plan is not possible for the
    statement, or if another plan is approved already and `replaces` is False.
    """
    files = ReviewFiles(directory)
    if (record := _ahead(directory, files, table)) is None:
        stop = _stop_for(OperatorAct.APPROVE, directory, table)
        record = files.pending(stop)
    if record is None:
        raise ActRefusedError(
            f"the record of the pending schema change of {table} is gone; "
            f"`sluice {OperatorAct.RESUME} {directory.name} {shlex.quote(table)}` lets the engine read the statement and store the "
            "record again"
        )
    if position and record.position != position:
        raise ActRefusedError(
            f"another statement of {table} now waits for approval: `{record.statement}` at {record.position} "
            f"instead of the statement at {position}; look at the plans with `sluice schema held`, and decide "
            "about the new statement"
        )
    if plan not in record.choices:
        raise ActRefusedError(
            f"{plan!r} is not a plan for `{record.statement}`; choose one of {', '.join(record.choices)}"
        )
    before = files.approve(record, plan, replaces=replaces)
    if before not in {"", plan} and not replaces:
        raise ActRefusedError(
            f"`{record.statement}` of {table} is already approved as {before}, and the engine has not read "
            f"that approval yet; `sluice {OperatorAct.APPROVE} {directory.name} {shlex.quote(table)} --plan {plan}` "
            "replaces the approval"
        )
    request(directory, record.database, record.table)
    return record


def _ahead(directory: Path, files: ReviewFiles, table: str) -> PendingRecord | None:
    """Returns the schema change at which a table will stop again, although the table is not stopped now. Returns None if there is no such
    change.

    Such a change exists when another table was resumed at an earlier position. The cursor then moved back before the change, and this table
    continues until the stream reaches the change again. An approval that is stored before that keeps the table from stopping.
    """
    ledger = read_ledger(directory)
    if ledger.cursor is None or any(stop.name == table for stop in ledger.stopped_tables):
        return None
    return files.first_after(table, ledger.cursor.order_key)


def resolve(directory: Path, table: str, statement: str) -> StoppedTable:
    """Stores the schema of a CREATE TABLE as the schema that the table has from its stop on, and requests that the table resumes. Raises
    ActRefusedError, and stores nothing, if the statement cannot be used.
    """
    stop = _stop_for(OperatorAct.RESOLVE, directory, table)
    if not stop.order_key:
        raise ActRefusedError(
            f"the stop of {table} of {directory.name} does not name the binlog event whose schema is unknown: an earlier version of Sluice "
            f"stored the stop, or the table stopped for another reason ({stop.reason}). "
            f"`sluice {OperatorAct.RESUME} {directory.name} {shlex.quote(table)}` reads the binlog from the stop on again. If the table "
            "then stops again because its schema is unknown, resolve that stop"
        )
    Resolutions(directory).keep(schema_of(statement, stop.database, stop.table), stop.order_key)
    request(directory, stop.database, stop.table)
    return stop


def _stop_for(act: OperatorAct, directory: Path, table: str) -> StoppedTable:
    stop = stop_of(directory, table)
    if act not in acts_on(stop.state):
        raise ActRefusedError(
            f"{table} of {directory.name} has stopped in the state {stop.state}, from which `{act}` cannot "
            f"resume the table; {way_out(stop.state, directory.name, table)}"
        )
    return stop


def schema_of(statement: str, database: str, table: str) -> TableSchema:
    """Returns the schema that a CREATE TABLE defines for this table. The statement must have the form that SHOW CREATE TABLE prints. Raises
    ActRefusedError if the statement cannot be used.
    """
    read = read_statement(statement, MARIADB if "/*M!" in statement else MYSQL)
    if isinstance(read, Unread):
        raise ActRefusedError(
            f"the CREATE TABLE cannot be read: {read.reason}; give the statement as SHOW CREATE TABLE prints it"
        )
    if not isinstance(read, CreateTable) or read.like is not None or read.selects:
        raise ActRefusedError("give one CREATE TABLE statement with the columns in it, as SHOW CREATE TABLE prints it")
    if read.name not in {TableName("", table), TableName(database, table)}:
        raise ActRefusedError(
            f"the statement creates {read.name.database or database}.{read.name.table} instead of the table to resolve, {database}.{table}"
        )
    try:
        schema = created(read, database, None, lambda _name: None)
    except CannotFollowError as error:
        raise ActRefusedError(
            f"the CREATE TABLE does not define every column completely: {error.reason}; give the statement as "
            "SHOW CREATE TABLE prints it, with DEFAULT CHARSET=…"
        ) from error
    return dataclasses.replace(schema, table=table)
