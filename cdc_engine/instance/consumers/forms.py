"""Collects the settings of conf/ about the rows that consumers get: values, columns and keys (`Forms`). The streams and servers of
consumers use these settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from sluice.cdc_engine.binlog.entries.rows import KeptColumns
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.config.brokers import BrokerConfig
from sluice.cdc_engine.config.consumers import CanalServerConfig
from sluice.cdc_engine.instance.tables.value_policies import keys_of, policies_of
from sluice.cdc_engine.sink.column_filter import ColumnFilter


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownEntries:
    """The kinds of entries that a consumer gets. With `rows`, the consumer gets row events. With `rows_queries`, it gets the SQL of
    statements that change rows. With `transactions`, it gets the begin and the end of every transaction; without `transactions`, only one
    begin and end every few seconds. With `statements`, it gets statements such as DDL. Statements of Canal's type QUERY also need `others`.
    """

    rows: bool = True
    rows_queries: bool = False
    transactions: bool = True
    statements: bool = True
    others: bool = True


ALL_ENTRIES = ShownEntries()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forms:
    """Settings that decide how consumers see rows. `policies` (with the row rules) and `keys` have entries by "database.table", only for
    tables for which conf/ has such settings.

    `kept` returns the captured columns of a table; None means all. `named` returns the columns of a table that conf/ includes, and those
    that conf/ excludes. `entries` has the kinds of entries for clients, and `of_brokers` the kinds of entries for each broker, by the
    broker's number. With `full_batches`, a client's get waits until as much as the client requests is available.
    """

    policies: Mapping[str, ValuePolicy] = dataclasses.field(default_factory=dict)
    kept: KeptColumns | None = None
    keys: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    named: Callable[[str], tuple[frozenset[str] | None, frozenset[str]]] | None = None
    entries: ShownEntries = ALL_ENTRIES
    of_brokers: Mapping[int, ShownEntries] = dataclasses.field(default_factory=dict)
    full_batches: bool = False


def display_of(config: CanalServerConfig | BrokerConfig) -> Display:
    labels = isinstance(config, BrokerConfig) and config.has_schemas
    return Display(time_zone=config.time_zone, decimals=config.decimals, gtids=config.gtids, labels=labels)


def forms_of(config: DestinationConfig) -> Forms:
    """Returns a destination's settings for rows. Raises ConfigurationError for an invalid rule in conf/."""
    columns = ColumnFilter(config.column_include, config.column_exclude)
    return Forms(
        policies=policies_of(config),
        kept=columns.kept,
        keys=keys_of(config),
        named=columns.names_of,
        entries=_entries_of(config.canal_server),
        of_brokers={broker.client_id: _entries_of(broker) for broker in config.brokers},
        full_batches=config.canal_server.full_batches,
    )


def _entries_of(config: CanalServerConfig | BrokerConfig) -> ShownEntries:
    served = config if isinstance(config, CanalServerConfig) else CanalServerConfig()
    return ShownEntries(
        rows=config.row_entries,
        rows_queries=served.rows_query,
        transactions=served.transaction_entries,
        statements=config.ddl,
        others=config.other_statements,
    )
