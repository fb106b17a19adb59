"""Tables that begin in the middle of their life: all of a destination that is new, and those that conf/ newly includes. Asked by `wiring`.

`filters.json` says what was captured when the engine last started. A table that exists at the place where the stream goes on, and that
the patterns of then left out, has rows that no change tells of. Where `snapshot` in conf/ says so they are read; else a table that is newly
included stops by name and is not half there: that is for an operator to fill or to accept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from cdc_engine.config import DestinationConfig
from cdc_engine.contracts import StoppedTable, TableVersion
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError
from cdc_engine.meta.manager import MetaManager, stops
from cdc_engine.position import Position
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.snapshot.record import wanted
from cdc_engine.snapshot.records import SnapshotRecords
from cdc_engine.states import SnapshotState, TableState

FILE = "filters.json"


def take_up_new_tables(
    config: DestinationConfig, directory: Path, tables: Iterable[TableVersion], meta: MetaManager, begin: Position
) -> None:
    """Asks for the rows of the captured `tables` (of `begin`) that were not captured before, or stops them; then keeps the patterns.

    A crash in between does so once more, which changes nothing. Raises MetaError.
    """
    path, now = directory / FILE, {"include": config.include, "exclude": config.exclude}
    before = _kept(path)
    if before == now:
        return
    captured = TableFilter(before["include"], before["exclude"]) if before is not None else None
    records = SnapshotRecords(directory)
    for table in tables:
        if captured is not None and captured.keeps(table.database, table.table):
            continue
        if config.reads_first_rows(table.database, table.table):
            _want_rows(records, table, begin)
        elif captured is not None:
            meta.update(stops(_stop(table, begin)))
    keep_file(path, json.dumps(now))


def _want_rows(records: SnapshotRecords, table: TableVersion, begin: Position) -> None:
    there = records.get(table.name)
    if there is None or not there.is_open:
        records.begin(wanted(table.name, begin, time.time()))
    elif there.state != SnapshotState.WANTED:
        records.update(table.name, lambda now: now.again("it was not captured meanwhile", held_after=begin.order_key))


def _kept(path: Path) -> dict[str, str] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"include": str(record["include"]), "exclude": str(record["exclude"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaError(
            f"{path} cannot be read ({error}): remove it, if the include and exclude patterns of conf/ were not changed"
        ) from error


def _stop(table: TableVersion, begin: Position) -> StoppedTable:
    reason = (
        f"conf/ includes it from {begin} on and did not before, so rows and changes from before are not in the lake: take its rows anew "
        "with `./sluice snapshot start`, or exclude it again; `./sluice schema resume` lets it begin here without them"
    )
    return StoppedTable(
        database=table.database, table=table.table, state=TableState.NEWLY_INCLUDED, reason=reason, position=begin
    )
