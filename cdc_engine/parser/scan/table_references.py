"""Maps a table map event to the index of its table in the `tables` of a block, or to -1 (NOT_CAPTURED) if blocks do not need the table's
rows.

The scan kernel itself handles the table maps that it knows. Most of the other table maps differ from a known one only in the table id,
because a server assigns a new id each time it opens a table. So table maps are compared without the table id. The schema history is queried
only for table maps that are new since the last DDL statement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.events.table_map import parse_table_map
from sluice.cdc_engine.contracts import Bytes, TableChange, TableChangeKind, TableVersion
from sluice.cdc_engine.errors import NotATableError, TableStoppedError
from sluice.cdc_engine.ports import SchemaHistory
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState

Captured = Callable[[str, str], bool]
NOT_CAPTURED = -1
TABLE_ID_BYTES = 6


class TableReferences:
    """The table versions to which the blocks of one stream refer. Entries of the list `versions` are never removed, because blocks refer to
    this list and to indices in it.
    """

    def __init__(self, history: SchemaHistory, captured: Captured) -> None:
        self.versions: list[TableVersion] = []
        # Indices in `versions` of tables whose rows no ROLLBACK undoes, because their storage engine has no transactions.
        self.not_undone: set[int] = set()
        self._history = history
        self._captured = captured
        self._by_version: dict[TableVersion, int] = {}
        self._by_map: dict[bytes, int] = {}
        self._stopped: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Removes all known table maps after a schema change, so that the schema history is queried again for each table."""
        self._by_map.clear()

    def reference(self, body: Bytes, position: Position) -> tuple[int, tuple[TableChange, ...]]:
        """Returns the index in `versions` of the table that a table map describes, and the changes that stop tables. The index is
        NOT_CAPTURED if blocks do not need the table's rows. `position` is the end of the table map event. A table stops at this position,
        before the first row event that the lake does not get.

        A table that is not captured is in `versions` if, through foreign keys, a change of its rows changes rows of captured tables. If
        such a table cannot be decoded, these captured tables stop.

        A captured table can stop although its rows can be decoded, for example because the lake lacks earlier rows of the table. Consumers
        still get the table's rows, because consumers do not need the lake. The blocks then refer to a version that is marked as stopped.

        A stopped table stays stopped as long as this `TableReferences` is used, even after DDL, because rows are missing in the lake. The
        `TableReferences` of the next connection may report the same stop again.
        """
        content = body[TABLE_ID_BYTES:].tobytes()
        known = self._by_map.get(content)
        if known is not None:
            return known, ()
        index, changes = self._look_up(body, position)
        self._by_map[content] = index
        return index, changes

    def _look_up(self, body: Bytes, position: Position) -> tuple[int, tuple[TableChange, ...]]:
        table_map = parse_table_map(body.tobytes())
        name = (table_map.database, table_map.table)
        captured, cascades = self._captured(*name), self._history.cascades(*name)
        if not captured and not cascades:
            return NOT_CAPTURED, ()
        reported = name in self._stopped
        try:
            version = self._history.resolve(table_map, position)
            if reported:
                raise _stopped_before(version)
        except NotATableError:
            return NOT_CAPTURED, ()
        except TableStoppedError as error:
            self._stopped.add(name)
            own = (stopped_change(error, position),) if captured and not reported else ()
            index = self._index(error.version) if captured and error.version is not None else NOT_CAPTURED
            return index, (*own, *(stopped_change(each, position) for each in _unseen(cascades, error)))
        follows = captured and self._history.follows(*name)
        return self._index(dataclasses.replace(version, cascades=cascades, watched=not captured, follows=follows)), ()

    def _index(self, version: TableVersion) -> int:
        if version not in self._by_version:
            self._by_version[version] = len(self.versions)
            self.versions.append(version)
        index = self._by_version[version]
        # Whether a ROLLBACK undoes rows of the table depends on its storage engine. The schema history is asked each time, because ALTER
        # TABLE can change the storage engine without a new table version.
        if self._history.is_undone(version.database, version.table):
            self.not_undone.discard(index)
        else:
            self.not_undone.add(index)
        return index


def _stopped_before(version: TableVersion) -> TableStoppedError:
    """Returns the error for a table whose stop the `TableReferences` has already reported. The lake lacks the table's rows since the stop.
    So the table stays stopped although the schema history now has `version`, with which its rows can be decoded.
    """
    stopped = dataclasses.replace(version, stopped=True)
    return TableStoppedError(
        version.database,
        version.table,
        TableState.CASCADE_UNSEEN,
        "the table stopped earlier, and the lake lacks its changes since then",
        stopped,
    )


def _unseen(cascades: tuple[Cascade, ...], error: TableStoppedError) -> list[TableStoppedError]:
    """Returns the errors for the captured tables that stop because another table cannot be decoded: the tables whose rows change, through
    foreign keys, when rows of the other table change. `error` says why the other table cannot be decoded.
    """
    reason = (
        f"foreign keys change rows of the table when rows of {error.database}.{error.table} change, and "
        f"{error.database}.{error.table} cannot be read ({error.state}: {error.reason}); resume both tables "
        "together"
    )
    children = dict.fromkeys(cascade.child for cascade in cascades if cascade.captured)
    return [
        TableStoppedError(*child, TableState.CASCADE_UNSEEN, reason)
        for child in children
        if child != (error.database, error.table)
    ]


def stopped_change(error: TableStoppedError, position: Position) -> TableChange:
    return TableChange(
        kind=TableChangeKind.STOPPED,
        database=error.database,
        table=error.table,
        order_key=position.order_key,
        time_us=position.time_us,
        state=error.state,
        reason=error.reason,
        schema=error.version if error.version is not None and error.version.columns else None,
    )
