"""Defines the input and output of `effects`: a statement's position with the state before it, and its effect on one table. Pure values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.batch_manifest.values import Alteration
from sluice.cdc_engine.binlog.charsets.statement_text import shown
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession, TableChangeKind
from sluice.cdc_engine.table_meta.change import foreign_keys
from sluice.cdc_engine.table_meta.change.evolution import Fills
from sluice.cdc_engine.table_meta.change.policy import PendingChange
from sluice.cdc_engine.table_meta.ddl.statement import TableName
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownSchemas, KnownTable, TableKey
from sluice.cdc_engine.table_meta.history.questions import Answers
from sluice.cdc_engine.table_meta.schema import DroppedTable, Stopped, TableSchema

STATEMENT_CHARS_MAX = 500


@dataclasses.dataclass(frozen=True)
class DdlEffect:
    """The effect of a statement on one table. `change`: the kind of change for the lake, None for no change. `state`: the table's state
    in the history from here on, None if it stays.

    `early`: another change of the table follows at the same position, and each needs its own order key. `pending`: a statement that waits
    for review. `renamed_from`: the captured table that got this name, as in TableChange. `lake_schema`: the one for the lake, if it is not
    `state`.
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
    """A statement's position and the state before it. `key`: the order key just before the statement. `position`, `text` (the
    statement's) and `destination` are for messages.

    `answers`: the answers to the rules' questions so far.
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

    def state(self, name: TableKey) -> KnownTable:
        return self.known.table(name, self.key)

    def schema(self, name: TableKey) -> TableSchema | None:
        """Returns the table's schema at this position, also after a stop; None if the table does not exist or its schema is unknown."""
        state = self.state(name)
        if isinstance(state, Stopped):
            return state.schema
        return state if isinstance(state, TableSchema) else None

    def running(self, name: TableKey) -> bool:
        """Returns whether the table is captured and no earlier statement stopped it. A stopped table keeps its first reason."""
        return self.captured(*name) and not isinstance(self.state(name), Stopped)

    def tables(self) -> list[TableKey]:
        """Returns all tables that exist or may exist at this position, captured or not, stopped or not. The schemas of some are unknown."""
        return [*(name for name in self.known.table_names() if self.schema(name) is not None), *self.unknown_tables()]

    def may_exist(self, name: TableKey) -> bool:
        """Returns whether the table may exist at this position although nothing is known but its name."""
        return self.known.may_exist(name, self.key)

    def unknown_tables(self) -> list[TableKey]:
        """Returns the tables that may exist at this position and whose schemas are unknown, except stopped ones."""
        return self.known.unknown_tables(self.key)


def shortened(text: str) -> str:
    """Returns a statement for display: on one line, and without backquotes, which would end the text in Markdown."""
    line = " ".join(shown(text).split()).replace("`", "")
    return line if len(line) <= STATEMENT_CHARS_MAX else f"{line[:STATEMENT_CHARS_MAX]} …"
