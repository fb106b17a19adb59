"""Defines the rules by which the tables of a batch are staged. The engine makes the rules of each batch from conf/ and the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY, ValuePolicy
from sluice.cdc_engine.contracts import Int32s, TableVersion
from sluice.cdc_engine.staging.cascades import APPLY

KeptColumns = Callable[[TableVersion], Int32s]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagingRules:
    """Says how each table of a batch is staged: with which columns and key, and by which rules. Tables are named "database.table".

    - `kept`: returns the indices of the captured columns of a table version (int32, ascending); None means all columns.
    - `keys`: the key columns of tables whose key is not the primary key.
    - `left_out`: tables that stopped in an earlier batch and are not staged. The value is an order key: the lake lacks the table's changes
      after this key.
    - `policies`: the policy of each table whose settings differ from the default: how its invalid values are handled, and which rules apply
      to its rows.
    - `cascade_policy`: (database, table) → whether changes by foreign keys are applied, ignored, or stop the table.
    - `has_up_to`: returns the order key up to which staging skips a table's changes. After a table was resumed, the stream is read again,
      and the lake already has the changes of the other tables. In all other cases, returns 0, so that no change is skipped.
    - `logged`: tables with a change log. All before images of these tables are staged.
    - `again_up_to`: changes up to this order key are staged as changes that the lake may already have, because an earlier attempt staged
      them, a run may have merged some of them, and the staged files are missing. Otherwise 0.
    """

    kept: KeptColumns | None = None
    keys: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)
    policies: Mapping[str, ValuePolicy] = dataclasses.field(default_factory=dict)
    cascade_policy: Callable[[str, str], str] = lambda _database, _table: APPLY
    has_up_to: Callable[[str], int] = lambda _table: 0
    logged: Collection[str] = ()
    again_up_to: int = 0

    def policy(self, name: str) -> ValuePolicy:
        """Returns the policy of the table `name`, or the default policy if conf/ sets no other."""
        return self.policies.get(name, DEFAULT_POLICY)

    def lacking_before(self, order_key: int) -> frozenset[str]:
        """Returns the stopped tables (`left_out`) of which the lake lacks changes before `order_key`."""
        return frozenset(name for name, since in self.left_out.items() if since < order_key)
