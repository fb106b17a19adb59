"""Decides which columns of a table are captured: `database.table:a/b,…`, as Canal's filter.field and filter.black.field (canal.md §2.7).

Used when a table's column layout is made: the rows of a block keep all their columns, and only the decoded columns change.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.contracts import Int32s, TableVersion


class ColumnFilter:
    """The columns to keep (`include`) or to leave out (`exclude`), by table. A table named in both follows `include`.

    A table is matched by its exact name, ignoring letter case, without patterns. An item without exactly one colon, or without a column
    after it, has no effect, as in Canal; `ignored` lists those items, so a check of the configuration can report them. Key columns are
    always kept: without its key a change could not be merged (Canal removes them).
    """

    def __init__(self, include: str = "", exclude: str = "") -> None:
        self.ignored: list[str] = []
        self._include = self._parse(include)
        self._exclude = self._parse(exclude)

    def kept(self, version: TableVersion) -> Int32s:
        """Returns the indices (int32, ascending) of the captured columns of `version`."""
        table = version.name.upper()
        key = {name.upper() for name in version.key}
        names = [column.name.upper() for column in version.columns]
        if table in self._include:
            keep = [name in self._include[table] or name in key for name in names]
        else:
            excluded = self._exclude.get(table, frozenset())
            keep = [name not in excluded or name in key for name in names]
        return np.flatnonzero(keep).astype(np.int32)

    def names_of(self, name: str) -> tuple[frozenset[str] | None, frozenset[str]]:
        """Returns the columns of "database.table" that are included (None if no item names the table), and those that are excluded."""
        return self._include.get(name.upper()), self._exclude.get(name.upper(), frozenset())

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """UPPER(database.table) → the columns that the items name, in upper case."""
        return {**self._exclude, **self._include}

    def _parse(self, text: str) -> dict[str, frozenset[str]]:
        """Returns upper-case column names by UPPER(database.table). A table named twice keeps its last item, as in Canal."""
        tables: dict[str, frozenset[str]] = {}
        for item in filter(None, text.split(",")):
            table, colon, columns = item.partition(":")
            names = frozenset(name.upper() for name in columns.split("/") if name)
            if not colon or ":" in columns or not names:
                self.ignored.append(item)
                continue
            tables[table.upper()] = names
        return tables
