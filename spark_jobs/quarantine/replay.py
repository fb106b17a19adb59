"""Puts values that can be decoded by now back into their rows. `sluice quarantine replay` calls it while no run merges.

A row is the one the value was taken from only as long as it has the order key of the value's transaction: a later change of the row has
brought its own value, and a value from before the table got its name is another table's. Its key tells it from the others of the
transaction; in a table without a key all its columns do, and rows that they do not tell apart get their values only where those are equal.
Doing it twice changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from spark_jobs import sql_text
from spark_jobs.session import Lane
from spark_jobs.staged_batch import ORDER_KEY
from spark_jobs.tables.renamed_table import RENAMED_AT

VIEW = "sluice_quarantine_replay"
NUMBER_COLUMN, KEY_COLUMN, VALUE_COLUMN, NAMED, TURN = "number", "order_key", "value", "named_", "turn"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowValues:
    """A Parquet file of one column's values: number (of the value), order_key, value, and `named_<k>`, the row's column names[k] as text
    (bytes as hexadecimal digits, NULL where anything will do). `keyed`: these are its key. `type_name`: of the value, in Spark SQL.
    """

    file: Path
    type_name: str
    names: Sequence[str]
    keyed: bool


def put_back(lane: Lane, name: str, path: str, column: str, values: RowValues) -> frozenset[int]:
    """Sets `column` of the Delta table of `name` at `path`, which has the values' type; the numbers of those whose rows it found."""
    target = sql_text.delta_path(path)
    _view(lane, values)
    on = _meets(lane, target, column, values)
    chosen = _chosen(target, on, values)
    numbers = frozenset(int(row[0]) for row in lane.session.sql(f"SELECT {NUMBER_COLUMN} FROM ({chosen})").collect())
    if numbers:
        lane.commit(
            name,
            f"MERGE INTO {target} AS t USING (SELECT * FROM ({chosen}) WHERE {TURN} = 1) AS s ON {on} "
            f"WHEN MATCHED THEN UPDATE SET {sql_text.identifier(column)} = s.{VALUE_COLUMN}",
        )
    return numbers


def _view(lane: Lane, values: RowValues) -> None:
    named = [f"{name} string" for name in _named(values)]
    columns = ", ".join([f"{NUMBER_COLUMN} bigint, {KEY_COLUMN} bigint, {VALUE_COLUMN} {values.type_name}", *named])
    options = f"path {sql_text.text(str(values.file))}"
    lane.sql(f"CREATE OR REPLACE TEMPORARY VIEW {VIEW} ({columns}) USING parquet OPTIONS ({options})")


def _named(values: RowValues) -> list[str]:
    return [f"{NAMED}{place}" for place in range(len(values.names))]


def _meets(lane: Lane, target: str, column: str, values: RowValues) -> str:
    """A condition on a row `t` of the table and a value `s`: the value may be the row's."""
    (detail,) = lane.session.sql(f"DESCRIBE DETAIL {target}").collect()
    since = int(detail["properties"].get(RENAMED_AT, -1))
    met = [f"t.{sql_text.identifier(ORDER_KEY)} = s.{KEY_COLUMN}", f"s.{KEY_COLUMN} > {since}L"]
    if not values.keyed:
        quoted = f"t.{sql_text.identifier(column)}"
        met.append(f"({quoted} IS NULL OR {quoted} <=> s.{VALUE_COLUMN})")
    fields = lane.session.sql(f"SELECT * FROM {target}").schema
    types = {field.name.lower(): field.dataType.simpleString() for field in fields}
    for name, text in zip(values.names, _named(values), strict=True):
        if name.lower() in types:
            given = _typed(f"s.{text}", types[name.lower()])
            met.append(f"(s.{text} IS NULL OR t.{sql_text.identifier(name)} <=> {given})")
    return " AND ".join(met)


def _chosen(target: str, on: str, values: RowValues) -> str:
    """The values that are as many as the rows they may belong to, and all one value where they are several; the first has TURN 1."""
    alike = f"PARTITION BY {', '.join([KEY_COLUMN, *_named(values)])}"
    ends = (f"{end}({VALUE_COLUMN}) OVER ({alike})" for end in ("min", "max"))
    turn = f"row_number() OVER ({alike} ORDER BY {NUMBER_COLUMN}) AS {TURN}"
    facts = f"count(*) OVER ({alike}) AS together, {turn}, {' <=> '.join(ends)} AS same"
    rows = f"SELECT s.{NUMBER_COLUMN}, count(*) AS rows FROM {VIEW} AS s JOIN {target} AS t ON {on} GROUP BY s.{NUMBER_COLUMN}"
    groups = f"SELECT *, {facts} FROM {VIEW}"
    return f"SELECT g.* FROM ({groups}) AS g JOIN ({rows}) AS r USING ({NUMBER_COLUMN}) WHERE r.rows = g.together AND g.same"


def _typed(text: str, type_name: str) -> str:
    return f"unhex({text})" if type_name == "binary" else f"CAST({text} AS {type_name})"
