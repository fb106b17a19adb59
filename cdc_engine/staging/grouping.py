"""Groups the row events of a slice by table version. Each table keeps the order of the stream. Pure. Called by `staging`."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sluice.cdc_engine.contracts import BlockSlice, Int32s, Int64s, TableVersion


def runs_by_table(part: BlockSlice) -> list[tuple[TableVersion, Int64s]]:
    """Returns (table version, ascending indices of its events in the block). If the version of a table changes within the slice, the table
    has one entry per change, in stream order.
    """
    tables = part.block.event_table[part.first_event : part.last_event]
    order = np.argsort(tables, kind="stable")
    grouped = tables[order]
    cuts = np.flatnonzero(np.diff(grouped)) + 1
    by_name: dict[str, list[Int64s]] = defaultdict(list)
    for indices in np.split(order, cuts) if len(order) else []:
        by_name[part.block.tables[tables[indices[0]]].name].append(indices)
    runs: list[tuple[TableVersion, Int64s]] = []
    for groups in by_name.values():
        runs += [(part.block.tables[tables[run[0]]], run + part.first_event) for run in _runs(groups, tables)]
    return runs


def _runs(groups: list[Int64s], tables: Int32s) -> list[Int64s]:
    """Splits the events of one table where its version changes. Most tables have one version only."""
    if len(groups) == 1:
        return groups
    merged = np.sort(np.concatenate(groups))
    return np.split(merged, np.flatnonzero(np.diff(tables[merged])) + 1)
