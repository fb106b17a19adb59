"""Decides which tables of a stream a consumer gets, and which tables have rows that can be shown. Used by `consumer_stream`.

Consumers get rows with the schema that the table has at the rows' position in the stream, even if the table is stopped for the lake. The
rows of a table cannot be shown if its schema is unknown, if a column type has no text form, or if conf/ names masks, conditions or columns
that do not fit its schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.cdc_engine.binlog.entries.elements import Mask
from sluice.cdc_engine.binlog.entries.messages import VERSIONS_MAX
from sluice.cdc_engine.binlog.entries.rows import TableEntries
from sluice.cdc_engine.binlog.entries.texts import DEFAULT_DISPLAY
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConsumerStoppedError
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.sink.event_sink import CapturedTables


class Readable:
    """Checks whether the rows of a table version can be shown to consumers with the settings in conf/. Caches the result by version."""

    def __init__(self, forms: Forms) -> None:
        self.forms = forms
        self._found: dict[int, tuple[TableVersion, str]] = {}

    def why_not(self, version: TableVersion) -> str:
        """Returns why the rows of a table version cannot be shown, or an empty text if they can."""
        known = self._found.get(id(version))
        if known is None or known[0] is not version:
            if len(self._found) >= VERSIONS_MAX:
                self._found.clear()
            known = self._found[id(version)] = (version, self._checked(version))
        return known[1]

    def _checked(self, version: TableVersion) -> str:
        if version.unreadable:
            return version.unreadable
        if version.stopped and (hidden := self._hidden_elsewhere(version)):
            return (
                f"conf/ masks or leaves out {', '.join(hidden)}, which the table no longer has since it "
                "stopped for the lake. If the source renamed a column, its values would be shown under the new name: correct `masks` "
                "or `column_exclude`"
            )
        forms = self.forms
        policy, key = forms.policies.get(version.name, DEFAULT_POLICY), forms.keys.get(version.name, ())
        try:
            TableEntries(version, DEFAULT_DISPLAY, policy, forms.kept, key)
        except ConsumerStoppedError as error:
            return str(error)
        return ""

    def _hidden_elsewhere(self, version: TableVersion) -> list[str]:
        """Returns the columns that conf/ masks or excludes and that the table does not have. Called for a table that is stopped for the
        lake. The source may have renamed such a column, so the caller does not show the table's rows: the column's values would be visible
        under the new name.
        """
        policy = self.forms.policies.get(version.name, DEFAULT_POLICY)
        named = self.forms.named(version.name)[1] if self.forms.named is not None else frozenset[str]()
        hidden = {*(each.column.lower() for each in policy.rules.masks), *(name.lower() for name in named)}
        return sorted(hidden - {column.name.lower() for column in version.columns})


class SelectedTables:
    """Decides which tables of a block a consumer gets. Returns boolean arrays with one value for each table in the block's list. Recomputes
    the arrays when a table is added to the list.
    """

    def __init__(self, captured: CapturedTables, shown: Readable) -> None:
        self._captured, self._shown = captured, shown
        self._tables: Sequence[TableVersion] = ()
        self._selected = self._unreadable = np.zeros(0, np.bool_)

    def selected(self, tables: Sequence[TableVersion]) -> Mask:
        """Returns which of `tables` the consumer's filters keep."""
        self._look(tables)
        return self._selected

    def unreadable(self, tables: Sequence[TableVersion]) -> Mask:
        """Returns which of `tables` the consumer's filters keep although their rows cannot be shown."""
        self._look(tables)
        return self._unreadable

    def _look(self, tables: Sequence[TableVersion]) -> None:
        if tables is self._tables and len(tables) == len(self._selected):
            return
        kept = [not each.watched and self._captured.keeps(each.database, each.table) for each in tables]
        refused = [is_kept and bool(self._shown.why_not(each)) for is_kept, each in zip(kept, tables, strict=True)]
        self._tables, self._selected, self._unreadable = tables, np.array(kept, np.bool_), np.array(refused, np.bool_)
