"""Counts a table's values in quarantine, for the table's asset check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import deltalake
import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.spark_jobs.errors import TableError

COLUMNS = ["database", "table", "column"]


def quarantined_by_column(path: str, table: str, storage_options: Mapping[str, str] | None = None) -> dict[str, int]:
    """Returns the number of quarantined values per column of a "database.table". Returns {} if there is no quarantine table. Raises
    TableError if the quarantine table cannot be read.
    """
    try:
        log = deltalake.DeltaTable(path, storage_options=dict(storage_options or {}) or None)
        rows: Any = pa.table(log.scan(columns=COLUMNS))
    except TableNotFoundError:
        return {}
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise TableError(
            table, f"the quarantine at {path} cannot be read: {error}; check its disk or object store", own=False
        ) from error
    cells = zip(*(rows[name].to_pylist() for name in COLUMNS), strict=True)
    return dict(Counter(column for database, short, column in cells if f"{database}.{short}" == table))
