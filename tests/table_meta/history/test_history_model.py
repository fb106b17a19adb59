"""Tests that the schema history equals a small model: a list of (position, tables), which is shortened when the stream goes back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.cdc_engine.contracts import TableChange
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts

TABLES = ("a", "b")
COLUMNS = ("c0", "c1", "c2", "c3")
START = 100
Schemas = dict[str, tuple[str, ...] | None]  # None: stopped


def at(offset: int) -> Position:
    return Position(epoch=1, file="binlog.000001", offset=offset * 16)


class HistoryMachine(RuleBasedStateMachine):
    """Compares the history with the model. `stream` contains the statements that the source wrote, which never change. `read` is the
    number of these statements that the history contains now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stream: list[tuple[int, str, Schemas, tuple[TableChange, ...]]] = []
        self.read = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.history = self.opened()
        self.history.seed(
            SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("d", "utf8mb4"),), ()), at(START)
        )

    def opened(self) -> TableHistory:
        return TableHistory(self.folder / "schema.jsonl", lambda database, _: database == "d")

    def written(self, statement: str, change: Schemas, gap: int) -> None:
        """Lets the source write a statement. The history first reads all earlier statements, and then this one."""
        offset, schemas = (
            (self.stream[-1][0], self.stream[-1][2]) if self.stream else (START, dict.fromkeys(TABLES, ()))
        )
        self.catch_up()
        offset += gap
        changes = self.history.apply(statement, "d", at(offset))
        self.stream.append((offset, statement, {**schemas, **change}, changes))
        self.read += 1

    @property
    def now(self) -> Schemas:
        return self.stream[-1][2] if self.stream else dict.fromkeys(TABLES, ())

    @rule(
        table=st.sampled_from(TABLES),
        columns=st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1),
        gap=st.integers(1, 9),
    )
    def create(self, table: str, columns: list[str], gap: int) -> None:
        definition = ", ".join(f"{column} int" for column in columns)
        change: Schemas = {table: tuple(columns)} if self.now[table] == () else {}
        self.written(f"CREATE TABLE IF NOT EXISTS {table} ({definition})", change, gap)

    @rule(table=st.sampled_from(TABLES), column=st.sampled_from(COLUMNS), first=st.booleans(), gap=st.integers(1, 9))
    def add(self, table: str, column: str, first: bool, gap: int) -> None:
        columns = self.now[table]
        if columns is None or columns == () or column in columns:
            return
        self.written(
            f"ALTER TABLE {table} ADD {column} int{' FIRST' if first else ''}",
            {table: (column, *columns) if first else (*columns, column)},
            gap,
        )

    @rule(table=st.sampled_from(TABLES), gap=st.integers(1, 9))
    def stop(self, table: str, gap: int) -> None:
        if self.now[table]:
            self.written(f"ALTER TABLE {table} DROP COLUMN c0", {table: None}, gap)

    @rule(table=st.sampled_from(TABLES), gap=st.integers(1, 9))
    def leave_alone(self, table: str, gap: int) -> None:
        self.written(f"ALTER TABLE {table} ENGINE=InnoDB", {}, gap)

    @rule()
    def restart(self) -> None:
        self.history = self.opened()

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        end = self.stream[-1][0] + 5 if self.stream else START + 5
        back = data.draw(st.integers(START, end))
        self.history.rewind(at(back))
        self.read = min(self.read, sum(offset <= back for offset, *_ in self.stream))

    @rule(data=st.data())
    def go_back_without_saying_so(self, data: st.DataObject) -> None:
        if self.read:
            self.read = data.draw(st.integers(0, self.read - 1))
            self.read_one()

    @precondition(lambda self: self.read < len(self.stream))
    @rule()
    def read_one(self) -> None:
        offset, statement, _, changes = self.stream[self.read]
        assert self.history.apply(statement, "d", at(offset)) == changes, "the same statement gave other changes"
        self.read += 1

    def catch_up(self) -> None:
        while self.read < len(self.stream):
            self.read_one()

    @invariant()
    def at_every_position_it_is_what_the_model_says(self) -> None:
        taken = self.stream[: self.read]
        for offset in range(START, (taken[-1][0] if taken else START) + 3):
            model: Schemas = dict.fromkeys(TABLES, ())
            for written_at, _, schemas, _ in taken:
                model = schemas if written_at <= offset else model
            expected = {table: columns for table, columns in model.items() if columns}
            versions = self.history.versions(at(offset))
            assert {version.table: tuple(column.name for column in version.columns) for version in versions} == expected


TestHistory = HistoryMachine.TestCase
TestHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
