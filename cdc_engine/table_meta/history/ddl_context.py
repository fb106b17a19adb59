"""Defines the arguments and the result of the module `effects`: a statement's position with the schemas before the statement, and the
statement's effect on one table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.batch_manifest.values import Alteration
from sluice.cdc_engine.binlog.charsets.statement_text import shown
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession, TableChangeKind
from sluice.cdc_engine.table_meta.change import foreign_keys
from sluice.cdc_engine.table_meta.change.evolution import Fills
from sluice.cdc_engine.table_meta.change.policy import PendingChange
from sluice.cdc_engine.table_meta.ddl.statement import AlterTable, RenameTables, Statement, TableName
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownSchemas, KnownTable, TableKey, was_dropped
from sluice.cdc_engine.table_meta.history.questions import Answers
from sluice.cdc_engine.table_meta.schema import DroppedTable, Stopped, TableSchema

STATEMENT_CHARS_MAX = 500


@dataclasses.dataclass(frozen=True)
class DdlEffect:
    """The effect of a statement on one table.

    - `change`: the kind of change for the lake's table, or None if the lake's table does not change. `lake_schema`: the schema for the
      lake, if it differs from `state`.
    - `state`: the table's new state in the schema history, or None if the state does not change.
    - `early`: whether another change of the table follows at the same position. If so, `change` gets an order key that is lower by one, so
      that it comes first.
    - `pending`: the statement, if it waits for an operator's approval.
    - `renamed_from`: the table's old name, if the lake moves the rows to the new name. `fills`: the values that existing rows get in new
      columns. `alterations`: the changes of the lake's table.
    """

    name: TableKey
    change: TableChangeKind | None
    state: TableSchema | Stopped | DroppedTable | None = None
    fills: Fills = ()
    alterations: tuple[Alteration, ...] = ()
    pending: PendingChange | None = None
    early: bool = False
    renamed_from: TableKey | None = None
    lake_schema: TableSchema | None = None


@dataclasses.dataclass(frozen=True)
class DdlContext:
    """The position of a statement, and the schema history before it. `key` is the order key directly before the statement. `position`,
    `text` (of the statement) and `destination` are used in messages.

    `effects` does not read policies, approvals and operators' schemas itself, but asks its caller for each one that it needs. `answers` has
    the caller's answers so far.
    """

    known: KnownSchemas
    key: int
    captured: Callable[[str, str], bool]
    default_database: str
    lower_case_names: bool
    position: str
    text: str = ""
    destination: str = ""
    answers: Answers = dataclasses.field(default_factory=Answers)
    session: StatementSession = NO_SESSION
    rules: foreign_keys.ForeignKeyRules = foreign_keys.RULES_OF_SHOWN

    def full_name(self, name: TableName) -> TableKey:
        return name.key(self.default_database, lower_case=self.lower_case_names)

    def new_name(self, statement: AlterTable) -> TableKey | None:
        """Returns the new name of the table that a statement alters, or None if the statement does not rename the table. RENAME TO with the
        table's own name renames nothing.
        """
        names = [self.full_name(name) for name in (statement.name, statement.renames_to) if name is not None]
        return names[-1] if names[-1] != names[0] else None

    def executed(self, statement: Statement) -> Statement:
        """Returns a RENAME TABLE IF EXISTS without the pairs that the server skips: a pair is skipped if its old name is no table or view
        when the server reaches the pair. Returns any other statement unchanged.
        """
        if not isinstance(statement, RenameTables) or not statement.if_exists:
            return statement
        objects = self.known.stored_objects(self.key)
        there: dict[TableKey, bool] = dict.fromkeys(objects.views() if objects is not None else (), True)
        pairs: list[tuple[TableName, TableName]] = []
        for pair in statement.pairs:
            old, new = map(self.full_name, pair)
            state = self.state(old)
            if there.get(old, self.may_exist(old) if state is None else not was_dropped(state)):
                pairs.append(pair)
                there |= {old: False, new: True}
        return dataclasses.replace(statement, pairs=tuple(pairs))

    def state(self, name: TableKey) -> KnownTable:
        return self.known.table(name, self.key)

    def schema(self, name: TableKey) -> TableSchema | None:
        """Returns the schema of a table at the position of the statement, even if the table is stopped. Returns None if the table does not
        exist or its schema is unknown.
        """
        state = self.state(name)
        if isinstance(state, Stopped):
            return state.schema
        return state if isinstance(state, TableSchema) else None

    def running(self, name: TableKey) -> bool:
        """Returns whether the table is captured and not stopped. Only running tables can stop, because a later statement must not replace
        the reason of an earlier stop.
        """
        return self.captured(*name) and not isinstance(self.state(name), Stopped)

    def tables(self) -> list[TableKey]:
        """Returns all tables that exist or may exist at the position of the statement, including tables that are not captured. A table with
        an unknown schema is included unless it is stopped.
        """
        return [*(name for name in self.known.table_names() if self.schema(name) is not None), *self.unknown_tables()]

    def may_exist(self, name: TableKey) -> bool:
        """Returns True if the schema of the table is unknown, and the table may exist at the position of the statement. Returns False if
        the schema is known, and for a stopped or dropped table.
        """
        return self.known.may_exist(name, self.key)

    def unknown_tables(self) -> list[TableKey]:
        """Returns the tables, except stopped ones, that may exist at the position of the statement and whose schemas are unknown."""
        return self.known.unknown_tables(self.key)


def shortened(text: str) -> str:
    """Returns a statement for display: shortened, on one line, and without backquotes, because backquotes would end the quoted text in
    Markdown.
    """
    line = " ".join(shown(text).split()).replace("`", "")
    return line if len(line) <= STATEMENT_CHARS_MAX else f"{line[:STATEMENT_CHARS_MAX]} …"
