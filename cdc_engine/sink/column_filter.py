"""Determines which columns of a table are captured. Settings have the form `database.table:a/b,…`, like Canal's filter.field and
filter.black.field.

Blocks contain the values of all columns; decoders apply this filter.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.contracts import Int32s, TableVersion


class ColumnFilter:
    """A column filter. `include` lists, per table, the only columns to capture, and `exclude` the columns to leave out. For a table in
    both, only `include` is used.

    Table names are not patterns, and their letter case does not matter. As in Canal, an item without exactly one colon and a column after
    it has no effect; `ignored` has such items, so that a check of the configuration can report them. Unlike in Canal, key columns are
    always captured, because a change without its key cannot be merged.
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
        """Returns (included columns, excluded columns) of "database.table", in upper case. The first is None if `include` does not name
        the table.
        """
        return self._include.get(name.upper()), self._exclude.get(name.upper(), frozenset())

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """The columns in the settings, as "DATABASE.TABLE" → column names, in upper case. A table in both settings has
        those of `include`.
        """
        return {**self._exclude, **self._include}

    def _parse(self, text: str) -> dict[str, frozenset[str]]:
        """Parses a setting to "DATABASE.TABLE" → column names, in upper case. If two items name the same table, the last one counts, as in
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
