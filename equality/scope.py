"""The keys of a table that differ: how the server is asked for their rows, and what they are in Delta. Pure; a repair asks.

The server finds rows by the column's collation, so that it may give more than was asked for, and a key of other bytes. Never less: what
its values cannot be asked for by exactly is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from equality.canonical import Canonical, quoted
from equality.source_side import key_conditions, literal
from equality.tables import Differs, Key

KINDS = ("missing", "surplus", "doubled", "value")


@dataclasses.dataclass(frozen=True)
class Scope:
    """`columns`: the key's, in its order. `keys`: canonical values of each, with what either side had."""

    columns: tuple[Canonical, ...]
    keys: Mapping[Key, Differs]

    @property
    def refusal(self) -> str:
        """Why rows cannot be asked for by these keys, or empty."""
        for column in self.columns:
            if column.select.startswith("CONVERT("):
                return f"conf/ names another charset for {column.name}, which is of its key"
        if any(value is None for key in self.keys for value in key):
            return "its key has no value in some rows"
        return ""

    @property
    def counts(self) -> dict[str, int]:
        """Keys by what is wrong with them: missing (in the lake), surplus, doubled, or value."""
        found = [kind_of(each) for each in self.keys.values()]
        return {kind: found.count(kind) for kind in KINDS}

    def conditions(self) -> Iterator[str]:
        """In MySQL's SQL; a statement each, together all rows under the keys."""
        # the text of a FLOAT has six digits; as a double it is what it is
        names = [each.select if each.type == "FLOAT" else quoted(each.name) for each in self.columns]
        literals = [[literal(column, value) for column, value in self._pairs(key)] for key in self.keys]
        return key_conditions(names, literals)

    def _pairs(self, key: Key) -> Iterator[tuple[Canonical, Any]]:
        return zip(self.columns, key, strict=True)

    def values(self, keys: Sequence[Key]) -> dict[str, list[Any]]:
        """Column → its value in each of the keys, as Delta has it."""
        return {
            column.name: [_as_delta(column, key[place]) for key in keys] for place, column in enumerate(self.columns)
        }


def kind_of(differs: Differs) -> str:
    """As `values.Difference` has it."""
    if differs.lake_rows > 1:
        return "doubled"
    if not differs.in_source:
        return "surplus"
    return "value" if differs.lake_rows else "missing"


def _as_delta(column: Canonical, value: Any) -> Any:
    """Texts are compared as their bytes in UTF-8."""
    return value.decode() if column.type == "BLOB" and not column.is_bytes else value
