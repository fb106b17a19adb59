"""Reports to Dagster the tables into which a run has written rows other than by a merge of the stream. Runs of snapshots, backfills and
repairs use this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from sluice.orchestration.base.shown_tables import shown_tables
from sluice.orchestration.base.side_tables import HISTORY, LOG, WrittenSides
from sluice.orchestration.base.table_catalog import SourceColumns, size_metadata
from sluice.orchestration.checks.stopped import FlowingTables

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.orchestration.base.ports import WrittenTable


class TableEvents:
    """Reports to Dagster which tables of a destination a run has written, as materializations. `shown` tells which of the tables have an
    asset of their own.
    """

    def __init__(self, context: dg.OpExecutionContext, config: SluiceConfig, destination: str) -> None:
        self._context, self.shown = context, shown_tables(config, destination)
        self._flowing, self._sources = FlowingTables(config, destination), SourceColumns(config, destination)
        self._sides = WrittenSides(config, destination)

    def written(
        self,
        name: str,
        table: WrittenTable,
        metadata: Mapping[str, dg.MetadataValue[Any]],
        description: str | None = None,
    ) -> None:
        """Reports a commit of the table `name` ("database.table") as a materialization of its asset. If the table has no asset of its own,
        reports a materialization of the asset that several tables share.
        """
        if self.shown.has_asset(name):
            size = size_metadata(table.table_rows, table.table_bytes)
            whole = {**metadata, **size, **self._sources.metadata(name, table.columns)}
        else:
            whole = {"table": dg.MetadataValue.text(name), **metadata}
        self._context.log_event(dg.AssetMaterialization(self.shown.key(name), description=description, metadata=whole))

    def sides_written(
        self,
        name: str,
        table: WrittenTable,
        metadata: Mapping[str, dg.MetadataValue[Any]],
        kinds: Sequence[str] = (LOG, HISTORY),
    ) -> None:
        """Reports the change log and the history that the run wrote with a table. If this fails, only logs a warning, because the tables
        themselves are correct. If the table has no asset of its own, reports nothing, because its change log and history have no assets
        either.
        """
        if not self.shown.has_asset(name):
            return
        try:
            for event in self._sides.events(name, table.columns, metadata, kinds):
                self._context.log_event(event)
        except Exception as error:  # Whatever the error is, only the report is missing.
            why = f"{type(error).__name__}: {error}"
            self._context.log.warning(
                "%s: the table's change log and history could not be reported to Dagster: %s", name, why
            )

    def passed(self, name: str) -> None:
        """Reports that a table which the run has written passed its check `flowing`. Reports nothing if the table has no such check, is
        stopped, or has a re-snapshot in progress.
        """
        for result in self._flowing.passed(name):
            self._context.log_event(result)  # type: ignore[arg-type]  # it takes evaluations of checks too
