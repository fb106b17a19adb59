"""Finds patterns of `include` that match no table. `sluice check` asks the source, `sluice status` uses the engine's list of tables."""

from __future__ import annotations

from collections.abc import Collection

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.discovery import captured_tables
from sluice.cdc_engine.sink.table_filter import TableFilter, split_patterns


def include_warning(destination: DestinationConfig, captured: Collection[str]) -> str:
    """Returns a sentence about patterns that match none of the captured "database.table", or an empty text."""
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
    left = " that exclude leaves" if "exclude" in destination.model_fields_set else ""
    return (
        f"{what} of include of {destination.name} {verb} no table of the source{left}{then}: correct include in "
        f"conf/destinations/{destination.name}.yaml, or ignore this until the table is created.{hint}"
    )


def ask_include_warning(destination: DestinationConfig) -> str | None:
    """Returns `include_warning` for the tables that the source has now; None if the source does not answer."""
    try:
        return include_warning(destination, [table.name for table in captured_tables(destination)])
    except SluiceError:
        return None
