"""Makes the function that stages the batches of a destination, with the columns, keys and value policies that conf/ sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import Batch, OutstandingBatch, Staged, TableVersion
from sluice.cdc_engine.instance.parts import EngineParts
from sluice.cdc_engine.instance.tables.resume import has_up_to
from sluice.cdc_engine.instance.tables.value_policies import keys_of
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.ports import Stager
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.staging.batches import FOLDER as STAGING_DIRECTORY
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.staging.staging import stage


def make_stager(
    config: DestinationConfig, directory: Path, meta: MetaManager, policies: Mapping[str, ValuePolicy]
) -> Stager:
    """Returns the function that stages a batch of the destination."""
    columns = ColumnFilter(config.column_include, config.column_exclude)
    keys = keys_of(config)
    logged = frozenset(name for name, table in config.tables.items() if table.change_log)

    def stager(batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        stops = {stop.name: stop.position.order_key for stop in meta.ledger.stopped_tables}
        staged = stage(
            batch,
            config.name,
            record.delivery,
            directory / STAGING_DIRECTORY,
            StagingRules(
                kept=columns.kept,
                keys=keys,
                left_out=stops,
                policies=policies,
                cascade_policy=config.cascade_policy,
                has_up_to=has_up_to(directory, record.start),
                logged=logged,
            ),
            ledger_id=record.ledger_id,
            more=more,
            again_up_to=given_up.order_key if (given_up := meta.ledger.given_up) else 0,
        )
        return _described(staged)

    return stager


def _described(staged: Any) -> Staged:
    manifest = staged.manifest
    return Staged(
        path=staged.path,
        rows=manifest.rows,
        size_bytes=manifest.bytes,
        tables=tuple(table.name for table in manifest.tables),
        first_commit_time_us=manifest.first_commit_time_us,
        stopped=staged.stopped,
    )


def keyed_tables(config: DestinationConfig, parts: EngineParts) -> list[TableVersion]:
    """Returns the captured tables at the stream's position. If conf/ names a key for a table, the table has this key instead of its primary
    key.
    """
    begin, keys = parts.parser.position or parts.meta.ledger.resume_position, keys_of(config)
    there = parts.history.versions(begin) if begin is not None else ()
    return [dataclasses.replace(each, key=keys.get(each.name, each.key)) for each in there]
