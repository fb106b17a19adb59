"""Finds tables without a key, and checks whether the account may lock them. Used by `sluice init` and `sluice check`.

On MySQL, a snapshot of such a table needs an exact position, and only a table lock provides it (`cdc_engine.snapshot.exact_position`).
"""

from __future__ import annotations

import contextlib

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import ConfigurationError, SluiceError
from sluice.cdc_engine.instance.discovery import captured_tables
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.snapshot.exact_position import require_lock
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.table_meta.history.tables_file import keyless_names


def ask_keyless(destination: DestinationConfig) -> tuple[tuple[str, ...], list[str]]:
    """Returns the captured tables without a key, and a problem for each database in which they cannot be locked. Raises SluiceError."""
    tables = captured_tables(destination)
    names = keyless_names(tables, lambda database, table: destination.table(database, table).key)
    if destination.snapshot == "never":
        return names, []
    by_database = {each.database: each for each in tables if each.name in names}
    problems: list[str] = []
    with contextlib.closing(open_reader(source_of(destination))) as reader:
        for table in by_database.values():
            try:
                require_lock(reader, table)
            except ConfigurationError as error:
                problems.append(str(error))
            except SluiceError:  # Somebody else has locked it, or it was dropped just now; the privilege exists.
                continue
    return names, problems
