"""Decides whether a stream may continue on another server at a position that is found by commit time (`failover: by_time`). The position
can be some seconds before the end of the stream, so that changes are read a second time. This module also decides which tables stop for
this reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable, TableVersion
from sluice.cdc_engine.parser.positions.by_time import start_by_time
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.parser.stream.event_parser import ByTime
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.history.changed_tables import changed_by

NO_KEY = "the table has no key, so the lake would have the rows of these changes twice"
NO_OTHERS: Mapping[str, str] = {}


def by_time_of(source: Source, config: DestinationConfig, captured: Callable[[str, str], bool]) -> ByTime | None:
    """Returns the function that finds by commit time where a stream continues on the server `source`. Returns None if the setting
    `failover` in conf/ is not `by_time`. `captured` returns whether conf/ captures a table (database, table).
    """
    if config.failover != "by_time":
        return None
    changed = functools.partial(changed_by, captured)
    return functools.partial(start_by_time, source, changed, back_seconds=config.failover_back_seconds)


def cannot_repeat(config: DestinationConfig, cascades: Iterable[Cascade]) -> dict[str, str]:
    """Returns the tables that must stop even if they have a key, because changes cannot be applied to them a second time, as
    "database.table" → reason. These are child tables of cascades, and tables with a history or a change log. `cascades` come from the
    schema history.
    """
    reasons = {".".join(each.child): _of_cascade(each) for each in cascades}
    for name, table in config.tables.items():
        if table.history:
            reasons[name] = "the table has a history (`history: true`), in which the versions of a row would overlap"
        if table.change_log:
            reasons[name] = "the table has a change log (`change_log: true`), which would have these changes twice"
    return reasons


def _of_cascade(cascade: Cascade) -> str:
    return (
        f"the foreign key {cascade.name} changes rows of the table when rows of {'.'.join(cascade.parent)} "
        "change, and the lake, from which Sluice computes these rows, is already at a later position"
    )


def stops_of(
    tables: Sequence[TableVersion], start: DumpStart, others: Mapping[str, str] = NO_OTHERS
) -> tuple[StoppedTable, ...]:
    """Returns a stop with its reason for each table to which changes cannot be applied twice: tables without a key, and those in `others`
    (from `cannot_repeat`). Returns no stops if the stream continues exactly where it ended.
    """
    if not start.read_twice_seconds:
        return ()
    went = (
        "the stream continues on another server, at a position that was found by commit time, and reads the changes of the last "
        f"{start.read_twice_seconds} s again, from {start.position} on"
    )
    why = {each.name: others.get(each.name, "") or ("" if each.key else NO_KEY) for each in tables}
    return tuple(
        StoppedTable(
            database=table.database,
            table=table.table,
            state=TableState.FAILED_OVER_BY_TIME,
            reason=f"{went}; {why[table.name]}: the table must be re-snapshotted",
            position=start.position,
        )
        for table in tables
        if why[table.name]
    )
