"""Determines which columns of a table are captured. Settings have the form `database.table:a/b,…`, as Canal's filter.field and
filter.black.field.

The sink does not remove columns from blocks. The decoders of row images apply this filter.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.contracts import Int32s, TableVersion


class ColumnFilter:
    """A filter of columns. `include` lists, per table, the columns to capture, and `exclude` the columns to leave out, as items
    `database.table:a/b` separated by commas. If both name a table, only `include` is used for this table.

    Table names are not patterns, and their letter case does not matter. As in Canal, an item has no effect if it does not have exactly one
    colon, followed by a column. `ignored` has the items without effect, so that a check of the configuration can report them. Unlike in
    Canal, key columns are always captured, because a change without its key cannot be merged.
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
        """Returns the columns of "database.table" that the settings include and exclude, in upper case. The included columns are None if
        `include` does not name the table.
        """
        return self._include.get(name.upper()), self._exclude.get(name.upper(), frozenset())

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """The columns that the settings name, as "DATABASE.TABLE" → column names, in upper case. If both settings name a table, the value
        has the columns of `include`.
        """
        return {**self._exclude, **self._include}

    def _parse(self, text: str) -> dict[str, frozenset[str]]:
        """Parses a setting to "DATABASE.TABLE" → column names, in upper case. If two items name the same table, the last item counts, as in
        Canal.
        """
        tables: dict[str, frozenset[str]] = {}
        for item in filter(None, text.split(",")):
            table, colon, columns = item.partition(":")
            names = frozenset(name.upper() for name in columns.split("/") if name)
            if not colon or ":" in columns or not names:
                self.ignored.append(item)
                continue
            tables[table.upper()] = names
        return tables
