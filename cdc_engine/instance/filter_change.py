"""Tables that conf/ newly includes: the stream has passed their rows by, so they stop by name and are not half there. Asked by `wiring`.

`filters.json` says what was captured when the engine last started. A table that exists at the place where the stream goes on, and that
the patterns of then left out, begins there without its older rows; that is for an operator to fill or to accept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from cdc_engine.config import DestinationConfig
from cdc_engine.contracts import StoppedTable, TableVersion
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError
from cdc_engine.meta.manager import MetaManager, stops
from cdc_engine.position import Position
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.states import TableState

FILE = "filters.json"


def stop_newly_included(
    config: DestinationConfig, directory: Path, tables: Iterable[TableVersion], meta: MetaManager, begin: Position
) -> None:
    """Stops the captured `tables` (of `begin`) that were not captured before, then keeps the patterns. Raises MetaError.

    A crash in between stops them once more, which changes nothing.
    """
    path, now = directory / FILE, {"include": config.include, "exclude": config.exclude}
    before = _kept(path)
    if before == now:
        return
    if before is not None:
        captured = TableFilter(before["include"], before["exclude"])
        for table in tables:
            if not captured.keeps(table.database, table.table):
                meta.update(stops(_stop(table, begin)))
    keep_file(path, json.dumps(now))


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
        f"conf/ includes it from {begin} on and did not before, so rows and changes from before are not in the lake: take its rows anew, "
        "or exclude it again; `./sluice schema resume` lets it begin here without them"
    )
    return StoppedTable(
        database=table.database, table=table.table, state=TableState.NEWLY_INCLUDED, reason=reason, position=begin
    )
