"""Finds settings of a destination that match no table: patterns in `include`, and names of tables and columns in other settings. `sluice
check` gets the tables from the source, and `sluice status` from the engine's list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.sink.table_filter import TableFilter, split_patterns


def unmatched_warnings(destination: DestinationConfig, captured: Sequence[TableVersion]) -> list[str]:
    """Returns a message for each setting that has no effect because it matches none of the captured tables. If no table is captured,
    returns only a message about `include`.
    """
    found = include_warning(destination, [table.name for table in captured])
    return [*([found] if found else []), *(_unmatched_names(destination, captured) if captured else ())]


def include_warning(destination: DestinationConfig, captured: Collection[str]) -> str:
    """Returns a message about the patterns in `include` that match none of the captured tables ("database.table"). Returns "" if every
    pattern matches a table.
    """
    tables = [tuple(name.split(".", 1)) for name in captured]
    patterns = [(pattern, TableFilter(pattern)) for pattern in split_patterns(destination.include)]
    unmatched = [pattern for pattern, matching in patterns if not any(matching.keeps(*table) for table in tables)]
    if not unmatched and tables:
        return ""
    blank = any(pattern != pattern.strip() for pattern in unmatched)
    hint = " A space next to a comma is part of a pattern." if blank else ""
    what = ", ".join(repr(pattern) for pattern in unmatched) or "include"
    verb = "match" if len(unmatched) > 1 else "matches"
    then = "" if tables else ", so nothing is captured"
    left = " (not counting tables that exclude removes)" if "exclude" in destination.model_fields_set else ""
    return (
        f"{what} in include of {destination.name} {verb} no table of the source{left}{then}: correct include in "
        f"conf/destinations/{destination.name}.yaml, or ignore this until the table is created.{hint}"
    )


def _unmatched_names(destination: DestinationConfig, captured: Sequence[TableVersion]) -> Iterator[str]:
    """Yields a message for each table under `tables` that is not captured, and for each entry of a column filter whose table or column is
    not captured.
    """
    tables = {table.name: table for table in captured}
    for name in destination.tables:
        if name not in tables:
            yield _unmatched(destination, "tables", name, _others(name, tables))
    exact = {name.upper(): name for name in tables}
    for setting in ("column_include", "column_exclude"):
        listed = ColumnFilter(include=getattr(destination, setting)).tables
        for name, wanted in listed.items():
            if name not in exact:
                yield _unmatched(destination, setting, name.lower())
                continue
            existing = {column.name.upper() for column in tables[exact[name]].columns}
            if existing and (lacking := sorted(wanted - existing)):
                yield _unmatched(destination, setting, f"{exact[name]}:{'/'.join(lacking).lower()}")


def _others(name: str, known: Iterable[str]) -> str:
    """Returns a sentence that names the captured table whose name differs from `name` only in letter case, or "" if there is no such table.
    The caller appends the sentence to a message.
    """
    same = next((each for each in known if each.lower() == name.lower()), "")
    return f" The captured table is called {same}." if same else ""


def _unmatched(destination: DestinationConfig, setting: str, name: str, hint: str = "") -> str:
    return (
        f"{name} in {setting} of {destination.name} is not captured, so the setting has no effect: correct "
        f"the name in conf/destinations/{destination.name}.yaml, or ignore this until the table is "
        f"created.{hint}"
    )
