"""Generates SQL for merges into a history. `condition`, `closing` and `HistoryDifference` are for Spark and for deltalake. `versions` and
`reopened` are only for Spark. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sluice.spark_jobs import sql_text
from sluice.spark_jobs.merging.fold import INSERT, KEYED_NAMES, RANK, UPDATE_AFTER
from sluice.spark_jobs.side_tables.versions import (
    CLOSES,
    FROM_KEY,
    IS_CURRENT,
    OPERATION_NAME,
    TO_KEY,
    VALID_FROM,
    VALID_TO,
)
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW

Quote = Callable[[str], str]
ROW_NUMBER, NEXT_KEY, NEXT_TIME = "_sluice_row_number", "_sluice_next_key", "_sluice_next_time"


def condition(key: Sequence[str], quote: Quote, *, reads: bool = False) -> str:
    """Returns the condition under which a row `s` of a MERGE's USING clause closes a version `t` in the history: the version is open, has
    the same key, and was opened at an earlier position than that of `s`.

    If `reads`, the rows come from a comparison of the history with the current rows (`HistoryDifference`). Such a row also closes a version
    that was opened at the position of `s`.
    """
    older = "<=" if reads else "<"
    met = [f"t.{quote(name)} = s.{quote(name)}" for name in key]
    return " AND ".join([*met, f"t.{IS_CURRENT}", f"s.{CLOSES}", f"t.{FROM_KEY} {older} s.{TO_KEY}"])


def closing(prefix: str = "") -> dict[str, str]:
    """Returns, for each column that changes when a version is closed, the expression of its new value."""
    return {
        f"{prefix}{VALID_TO}": f"s.{VALID_TO}",
        f"{prefix}{TO_KEY}": f"s.{TO_KEY}",
        f"{prefix}{IS_CURRENT}": "false",
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryDifference:
    """Compares a current-state table with the open versions of a history. If there is no current-state table, compares the rows of a
    snapshot instead.

    - `names` has the history's column for each column of the current-state table.
    - `key` are the key columns, with their names in the current-state table.
    - `order_key` and `time_us` (µs since 1970) are the position of the current-state table: it has all changes up to this position.
    - `deleted` is the condition of rows that are marked as deleted, or is empty if there are none.
    - If `at_position`, every new version begins at the position of the current-state table, because the table was renamed there. If not, a
      new version begins at the last change of its row. Exception: if the row's open version begins at this change or later, the new version
      begins at the position of the current-state table.
    - `left` are columns of the history that the current-state table does not have, because the source dropped them or changed their type.
      These columns get NULL.
    """

    names: Mapping[str, str]
    key: tuple[str, ...]
    order_key: int
    time_us: int
    deleted: str = ""
    at_position: bool = False
    left: tuple[str, ...] = ()

    def query(self, current_state: str, history: str, quote: Quote, micros: str) -> str:
        """Returns the query in the USING clause of a MERGE that makes the open versions equal to the rows of the current-state table. The
        query returns one row for each version to close, and one row for each version to open.

        `current_state` and `history` are relations. `micros` is the SQL function that converts microseconds to a timestamp.
        """
        names, time = self.names, f"{micros}({self.time_us})"
        indices = {name.lower(): at for at, name in enumerate(names)}
        met = " AND ".join(f"m_{indices[name.lower()]} = c_{indices[name.lower()]}" for name in self.key)
        others = [at for name, at in indices.items() if name not in {each.lower() for each in self.key}]
        # Each term has parentheses, because deltalake parses `a IS DISTINCT FROM b OR c` as
        # `a IS DISTINCT FROM (b OR c)`.
        differs = " OR ".join(f"(m_{at} IS DISTINCT FROM c_{at})" for at in others) or "false"
        both = f"SELECT * FROM ({self._current(current_state, quote, time)}) FULL OUTER JOIN ({self._open(history, quote)}) ON {met}"
        # The condition under which a change has the order key of the row (`m_key`). It is false if the current-state table lacks the row,
        # or if the row differs although `m_key` is not newer than the history's open version (`c_from`). The change then gets the position
        # of the current-state table, because the change is not later than this position.
        is_newer = "false" if self.at_position else "m_is AND (c_from IS NULL OR m_key > c_from)"
        since = f"CASE WHEN {is_newer} THEN m_key ELSE {self.order_key} END"
        at_time = f"CASE WHEN {is_newer} THEN m_time ELSE {time} END"
        closes = {VALID_TO: at_time, TO_KEY: since, CLOSES: "true"}
        opens = {VALID_FROM: at_time, FROM_KEY: since, OPERATION_NAME: "'read'", CLOSES: "false"}
        return (
            f"WITH found AS ({both}) "
            f"SELECT {self._selected('c', closes, quote)} FROM found WHERE c_is AND (m_is IS NULL OR {differs}) UNION ALL "
            f"SELECT {self._selected('m', opens, quote)} FROM found WHERE m_is AND (c_is IS NULL OR {differs})"
        )

    def _current(self, current_state: str, quote: Quote, time: str) -> str:
        columns = ", ".join(f"m.{quote(name)} AS m_{at}" for at, name in enumerate(self.names))
        key = f"coalesce(m.{ORDER_KEY}, {self.order_key}) AS m_key, coalesce(m.{COMMIT_TIME}, {time}) AS m_time"
        alive = f" WHERE NOT ({self.deleted})" if self.deleted else ""
        return f"SELECT {columns}, {key}, true AS m_is FROM {current_state} AS m{alive}"

    def _open(self, history: str, quote: Quote) -> str:
        columns = ", ".join(f"c.{quote(name)} AS c_{at}" for at, name in enumerate(self.names.values()))
        return f"SELECT {columns}, c.{FROM_KEY} AS c_from, true AS c_is FROM {history} AS c WHERE c.{IS_CURRENT}"

    def _selected(self, side: str, values: Mapping[str, str], quote: Quote) -> str:
        """Returns the SELECT list of all columns of the history. The source's columns come from the current-state table if `side` is "m",
        and from the history if `side` is "c". `values` has the expressions of Sluice's columns.
        """
        values = {IS_CURRENT: "true", **values}
        own = [f"{side}_{at} AS {quote(name)}" for at, name in enumerate(self.names.values())]
        own += [f"NULL AS {quote(name)}" for name in self.left]
        return ", ".join([*own, *(f"{values.get(name, 'NULL')} AS {name}" for name in OURS)])


def versions(images: str, names: Mapping[str, str], key: Sequence[str], left: Sequence[str]) -> str:
    """Returns a SELECT for Spark that folds row images to the versions that a merge closes and opens. Without Spark, `folded` and
    `as_source` of the module `versions` do the same.

    `images` is a relation with the images that the history does not have yet. `names` has the history's column for each column of the
    source. `key` are the source's key columns. `left` are columns of the history that the source no longer has; these columns get NULL.
    """
    quote = sql_text.identifier
    of_key = ", ".join(quote(name) for name in key)
    rank = f"row_number() OVER (PARTITION BY {of_key}, {ORDER_KEY} ORDER BY {ROW} DESC) AS {RANK}"
    over = f"OVER (PARTITION BY {of_key} ORDER BY {ROW})"
    follows = f"lead({ORDER_KEY}) {over} AS {NEXT_KEY}, lead({COMMIT_TIME}) {over} AS {NEXT_TIME}"
    last = f"SELECT *, row_number() {over} AS {ROW_NUMBER}, {follows} FROM (SELECT *, {rank} FROM ({images})) WHERE {RANK} = 1"
    cases = " ".join(f"WHEN {number} THEN '{name}'" for number, name in KEYED_NAMES.items())
    closes = {VALID_TO: COMMIT_TIME, TO_KEY: ORDER_KEY, CLOSES: "true"}
    opens = {VALID_FROM: COMMIT_TIME, VALID_TO: NEXT_TIME, IS_CURRENT: f"{NEXT_KEY} IS NULL", CLOSES: "false"}
    opens |= {FROM_KEY: ORDER_KEY, TO_KEY: NEXT_KEY, OPERATION_NAME: f"CASE {OPERATION} {cases} END"}
    values = {theirs: quote(name) for name, theirs in names.items()} | dict.fromkeys(left, "NULL")
    return (
        f"WITH found AS ({last}) "
        f"SELECT {_all(values, closes)} FROM found WHERE {ROW_NUMBER} = 1 UNION ALL "
        f"SELECT {_all(values, opens)} FROM found WHERE {OPERATION} IN ({INSERT}, {UPDATE_AFTER})"
    )


def reopened(history: str, columns: Sequence[str], fills: Mapping[str, str], order_key: int, time_us: int) -> str:
    """Returns a SELECT for Spark that closes each open version of a history and opens it again with new values. Called if a DDL statement
    gives existing rows values in new columns. `columns` are the history's columns that store columns of the source. `fills` has the
    expression of the new value per column.
    """
    at, values = sql_text.timestamp_us(time_us), {name: sql_text.identifier(name) for name in columns}
    closes = {VALID_TO: at, TO_KEY: f"{order_key}L", CLOSES: "true"}
    opens = {VALID_FROM: at, FROM_KEY: f"{order_key}L", IS_CURRENT: "true", OPERATION_NAME: "'update'", CLOSES: "false"}
    open_rows = f"FROM {history} WHERE {IS_CURRENT}"
    return f"SELECT {_all(values, closes)} {open_rows} UNION ALL SELECT {_all({**values, **fills}, opens)} {open_rows}"


def _all(values: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Returns the SELECT list of a row that is merged into a history. `values` has an expression per column. `ours` has the expressions of
    Sluice's own columns; a missing expression is NULL.
    """
    own = [f"{value} AS {sql_text.identifier(name)}" for name, value in values.items()]
    return ", ".join([*own, *(f"{ours.get(name, 'NULL')} AS {name}" for name in OURS)])


OURS = (VALID_FROM, VALID_TO, IS_CURRENT, FROM_KEY, TO_KEY, OPERATION_NAME, CLOSES)
