"""Describes the keys of a table whose rows differ, for a repair: SQL conditions that select these rows in the source, and the keys' values
in the lake. Pure functions.

The source compares keys by the column's collation, so a condition may also select rows whose keys differ in their bytes. A condition never
selects too few rows: `Scope.refusal` refuses the keys for which a condition could select too few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.equality.canonical import Canonical, quoted
from sluice.equality.source_side import key_conditions, literal
from sluice.equality.tables import DifferingKey, Key

KINDS = ("missing", "surplus", "doubled", "value")


@dataclasses.dataclass(frozen=True)
class Scope:
    """The keys of one table whose rows differ. `columns` are the key's columns in order. `keys` maps each key to what source and lake have
    for it. The values of a key are in the canonical form, in which source and lake are compared.
    """

    columns: tuple[Canonical, ...]
    keys: Mapping[Key, DifferingKey]

    @property
    def refusal(self) -> str:
        """Why the rows cannot be selected in the source by these keys, or "" if they can."""
        for column in self.columns:
            if column.has_other_charset:
                return f"`charsets` in conf/ sets another charset for the key column {column.name} than the source declares"
        if any(value is None for key in self.keys for value in key):
            return "the key is NULL in some rows"
        return ""

    @property
    def counts(self) -> dict[str, int]:
        """The number of keys for each kind of difference: missing in the lake, surplus in the lake, doubled in the
        lake, or other values.
        """
        found = [kind_of(each) for each in self.keys.values()]
        return {kind: found.count(kind) for kind in KINDS}

    def conditions(self) -> Iterator[str]:
        """Yields conditions in MySQL's SQL, one per statement, that together select all rows of the keys."""
        # The server prints a FLOAT with six digits only. So the comparison has read it with `select`, as a double, and the condition must
        # use the same expression.
        names = [each.select if each.type == "FLOAT" else quoted(each.name) for each in self.columns]
        literals = [[literal(column, value) for column, value in self._pairs(key)] for key in self.keys]
        return key_conditions(names, literals)

    def _pairs(self, key: Key) -> Iterator[tuple[Canonical, Any]]:
        return zip(self.columns, key, strict=True)

    def values(self, keys: Sequence[Key]) -> dict[str, list[Any]]:
        """Converts the values of keys from the canonical form to the values that the Delta table stores. Returns the values by column, in
        the order of `keys`.
        """
        return {
            column.name: [_as_delta(column, key[index]) for key in keys] for index, column in enumerate(self.columns)
        }


def kind_of(differs: DifferingKey) -> str:
    """Returns how source and lake differ for a key: "missing", "surplus" or "doubled" in the lake, or "value" for other values."""
    if differs.lake_rows > 1:
        return "doubled"
    if not differs.in_source:
        return "surplus"
    return "value" if differs.lake_rows else "missing"


def _as_delta(column: Canonical, value: Any) -> Any:
    """Converts a value from the canonical form to the value that the Delta table stores. In the canonical form, text is bytes in UTF-8."""
    return value.decode() if column.type == "BLOB" and not column.is_bytes else value
