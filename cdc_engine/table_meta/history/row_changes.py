"""Which captured tables a statement changed rows of without row events, and why they stop. Pure; called by `effects`.

A session that is not in row format logs its INSERT, UPDATE or DELETE as text: what it did to the rows is not told. The tables that it
writes to stop, and those whose rows foreign keys change with them. A name that is no table known (a view, a temporary table) may mean any
table of its database. Where it is not told what is written to (a function, a procedure), every table that the statement names, and every
one of the databases that it is about, stops. A TRUNCATE of such a session may mean a temporary table that hides the captured one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from cdc_engine.states import TableState
from cdc_engine.table_meta.change.evolution import CannotFollowError
from cdc_engine.table_meta.ddl.lower_case import lowered
from cdc_engine.table_meta.ddl.statement import mentioned
from cdc_engine.table_meta.history.cascades import Cascades
from cdc_engine.table_meta.history.kept.known_schemas import TableKey
from cdc_engine.table_meta.schema import TableSchema

_TOLD = "rows were changed by a statement, not in row format, so it is not told which and how"
_WAY_OUT = (
    "set binlog_format=ROW in every session, and take the rows anew, also those of tables that its triggers write to"
)


def emptied_in_doubt() -> CannotFollowError:
    """Of a TRUNCATE that used what only its session has: to empty the table, or not to, may both be wrong."""
    why = "its session may have had a temporary table of this name, and not this table may be empty"
    return CannotFollowError(
        TableState.STATEMENT_FORMAT, f"{why}; set binlog_format=ROW in every session, and take the rows anew"
    )


def changed_without_rows(
    names: Mapping[TableKey, bool],
    words: Collection[str],
    default_database: str,
    schemas: Sequence[TableSchema],
    captured: Callable[[str, str], bool],
) -> dict[TableKey, CannotFollowError]:
    """The tables that stop. `names`: what the statement writes to, and whether it is a table that is known; empty where not told.

    `words`: all names in the statement, in lower case. `schemas`: of the tables that are there.
    """
    there = [(schema.database, schema.table) for schema in schemas]
    found: dict[TableKey, CannotFollowError] = {}
    for name, known in names.items():
        if known:
            found[name] = CannotFollowError(TableState.STATEMENT_FORMAT, f"{_TOLD}; {_WAY_OUT}")
            continue
        why = f"{_TOLD}: {'.'.join(name)} is no table that is known, and may be a view of this one; {_WAY_OUT}"
        found |= {each: CannotFollowError(TableState.STATEMENT_FORMAT, why) for each in there if each[0] == name[0]}
    if not names:
        about = {lowered(default_database), *words}
        concerned = dict.fromkeys([*mentioned(there, frozenset(words)), *(t for t in there if lowered(t[0]) in about)])
        why = f"{_TOLD}, nor which tables it wrote to; {_WAY_OUT}"
        found |= {each: CannotFollowError(TableState.STATEMENT_FORMAT, why) for each in concerned}
    return _below(found, schemas, captured) | found


def _below(
    parents: Collection[TableKey], schemas: Sequence[TableSchema], captured: Callable[[str, str], bool]
) -> dict[TableKey, CannotFollowError]:
    """The tables whose rows change with those of these, over all levels."""
    cascades = Cascades(schemas, captured)
    found: dict[TableKey, CannotFollowError] = {}
    for parent in parents:
        why = (
            f"foreign keys change its rows with those of {'.'.join(parent)}, of which {_TOLD}; set binlog_format=ROW in every session, "
            "and take the rows anew"
        )
        children = (each.child for each in cascades.below(parent) if each.captured)
        found |= {child: CannotFollowError(TableState.CASCADE_UNSEEN, why) for child in children}
    return found
