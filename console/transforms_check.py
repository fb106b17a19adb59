"""Checks, for `sluice check`, whether the functions of transforms fit the tables that engines have recorded. Calls each function with zero
rows. Without this check, only an engine would notice that a function does not fit, and would stop the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError, TableStoppedError
from sluice.cdc_engine.instance.tables.value_policies import policy_of
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.table_meta.table_list.reading import read_tables


def transforms_sentence(config: SluiceConfig) -> str:
    """Returns a sentence that lists the tables with a transform."""
    found = [f"{table} of {name} by {function}" for name, table, function in _transforms(config)]
    return f"transforms: {', '.join(found) or 'none'}"


def transform_problems(config: SluiceConfig) -> list[str]:
    """Returns a message for each table whose transform has a function that fails or does not fit the table. Checks only tables that an
    engine, or the last discovery of the source, has recorded. Ignores functions that cannot be imported: `conf_problems` reports them.
    """
    problems = []
    for name, table, _ in _transforms(config):
        destination = config.destinations[name]
        known = {each.name: each for each in read_tables(config.destination_dir(name))}
        if (version := known.get(table)) is None:
            continue
        columns = ColumnFilter(destination.column_include, destination.column_exclude)
        keyed = dataclasses.replace(version, key=destination.tables[table].key or version.key)
        try:
            RowDecoder(keyed, columns.kept(keyed), policy=policy_of(destination, version.database, version.table))
        except TableStoppedError as error:
            problems.append(f"{table} of {name}: {error.reason}")
        except ConfigurationError:
            continue
    return problems


def transform_warnings(config: SluiceConfig) -> list[str]:
    """Returns a message for each destination that has tables with a transform, and also clients or brokers. A client or broker stops at the
    first row of such a table, because Canal's entries cannot contain the results of a transform.
    """
    tables: dict[str, list[str]] = {}
    for name, table, _ in _transforms(config):
        if config.destinations[name].has_consumers:
            tables.setdefault(name, []).append(table)
    return [
        f"transforms apply only to the lake, so clients and brokers of {name} stop at the first row of "
        f"{', '.join(found)}: exclude these tables in their filters"
        for name, found in tables.items()
    ]


def _transforms(config: SluiceConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (destination, "database.table", function) for each table with a transform."""
    for name, destination in sorted(config.destinations.items()):
        for table, options in sorted(destination.tables.items()):
            if options.transform is not None:
                yield name, table, options.transform.function
