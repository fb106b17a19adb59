"""`sluice schema resolve`: an operator says what a table looks like that stopped because its schema could not be known.

Keeps the schema for that very stop and asks the running engine to go on with the table from there. Used by `main`.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from cdc_engine.config import SluiceConfig
from cdc_engine.contracts import StoppedTable
from cdc_engine.destination_files import read_ledger
from cdc_engine.instance import resume
from cdc_engine.table_meta.change.evolution import CannotFollowError, created
from cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL
from cdc_engine.table_meta.ddl.reader import read_statement
from cdc_engine.table_meta.ddl.statement import CreateTable, TableName, Unread
from cdc_engine.table_meta.history.effects import RESOLVABLE
from cdc_engine.table_meta.history.resolutions import Resolutions
from cdc_engine.table_meta.schema import TableSchema
from console.sources import require_destination
from console.toolchain.errors import SetupError


def statement_of(file: str) -> str:
    """The text of the file, or of the standard input for "-". Raises SetupError when it cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} cannot be read: {error}") from error


def resolve(config: SluiceConfig, name: str, table: str, statement: str) -> StoppedTable:
    """Takes the CREATE TABLE as what the table has from its stop on. Raises SetupError with what is wrong, and then keeps nothing."""
    require_destination(config, name)
    directory = config.destination_dir(name)
    stop = next(
        (each for each in read_ledger(directory).stopped_tables if f"{each.database}.{each.table}" == table), None
    )
    if stop is None:
        raise SetupError(f"the table {table} of {name} has not stopped; `sluice status` lists those that have")
    if stop.state not in RESOLVABLE:
        raise SetupError(
            f"{table} of {name} has stopped in {stop.state}: its schema is known, `sluice schema held` shows what waits"
        )
    Resolutions(directory).keep(schema_of(statement, stop.database, stop.table), stop.reason)
    resume.request(directory, stop.database, stop.table)
    return stop


def schema_of(statement: str, database: str, table: str) -> TableSchema:
    """The schema that a CREATE TABLE, as SHOW CREATE TABLE prints it, gives this table. Raises SetupError."""
    read = read_statement(statement, MARIADB if "/*M!" in statement else MYSQL)
    if isinstance(read, Unread):
        raise SetupError(f"the CREATE TABLE cannot be read: {read.reason}")
    if not isinstance(read, CreateTable) or read.like is not None or read.selects:
        raise SetupError("give one CREATE TABLE statement with the columns in it, as SHOW CREATE TABLE prints it")
    if read.name not in {TableName("", table), TableName(database, table)}:
        raise SetupError(f"the statement creates {read.name.table}, and the table to resolve is {database}.{table}")
    try:
        schema = created(read, database, None, lambda _name: None)
    except CannotFollowError as error:
        raise SetupError(
            f"the CREATE TABLE leaves something open: {error.reason}; give it DEFAULT CHARSET=…"
        ) from error
    return dataclasses.replace(schema, table=table)
