"""Makes the rules by which the batches of a destination are staged: columns, keys and value policies of conf/, and stopped tables of the
ledger.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import OutstandingBatch, TableVersion
from sluice.cdc_engine.instance.parts import EngineParts
from sluice.cdc_engine.instance.tables.resume import has_up_to
from sluice.cdc_engine.instance.tables.value_policies import keys_of
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.staging.stager import RulesFor


def make_rules(
    config: DestinationConfig, directory: Path, meta: MetaManager, policies: Mapping[str, ValuePolicy]
) -> RulesFor:
    """Returns the function that returns the rules for a batch of the destination."""
    columns = ColumnFilter(config.column_include, config.column_exclude)
    keys = keys_of(config)
    logged = frozenset(name for name, table in config.tables.items() if table.change_log)

    def rules(record: OutstandingBatch) -> StagingRules:
        ledger = meta.ledger
        return StagingRules(
            kept=columns.kept,
            keys=keys,
            left_out={stop.name: stop.position.order_key for stop in ledger.stopped_tables},
            policies=policies,
            cascade_policy=config.cascade_policy,
            has_up_to=has_up_to(directory, record.start),
            logged=logged,
            again_up_to=ledger.given_up.order_key if ledger.given_up else 0,
        )

    return rules


def keyed_tables(config: DestinationConfig, parts: EngineParts) -> list[TableVersion]:
    """Returns the captured tables at the stream's position. If conf/ names a key for a table, the table has this key instead of its primary
    key.
    """
    begin, keys = parts.parser.position or parts.meta.ledger.resume_position, keys_of(config)
    there = parts.history.versions(begin) if begin is not None else ()
    return [dataclasses.replace(each, key=keys.get(each.name, each.key)) for each in there]
