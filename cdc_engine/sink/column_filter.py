"""Determines which columns of a table are captured. The settings have the form `database.table:a/b,…`, like Canal's filter.field and
filter.black.field.

The decoders use the filter. Blocks still contain the values of all columns.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.contracts import Int32s, TableVersion


class ColumnFilter:
    """A column filter. `include`: per table, the only columns to capture. `exclude`: per table, the columns not to capture. For a table in
    both, only `include` is used.

    Table names are exact names, not patterns; their case does not matter. As in Canal, an item without exactly one colon, or without a
    column after the colon, has no effect. `ignored`: these items, which a check of the configuration reports. Unlike in Canal, key columns
    are always captured, because a change without its key cannot be merged.
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
        """Returns (included columns, excluded columns) of "database.table", in upper case. The first is None if no item of `include` names
        the table.
        """
        return self._include.get(name.upper()), self._exclude.get(name.upper(), frozenset())

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """The columns in the settings: "DATABASE.TABLE" → column names, both in upper case. `include` takes precedence over `exclude`."""
        return {**self._exclude, **self._include}

    def _parse(self, text: str) -> dict[str, frozenset[str]]:
        """Parses a setting. Returns "DATABASE.TABLE" → column names, both in upper case. If two items name the same table, the last one is
        used, as in Canal.
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
