"""Tests that restarts and returns to earlier positions between any two statements change no schema. The statements are from
tests/table_meta/corpus. No server is used.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.charsets.statement_text import statement_text
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable, TableKey
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, Stopped
from tests.table_meta.ddl_corpus import Group, groups

GROUPS = {group.name: group for group in groups() if len(group.of("mysql80")) > 10}
States = dict[TableKey, KnownTable]
EXPECTED: dict[str, tuple[list[str], list[States]]] = {}


def at(index: int) -> Position:
    return Position(epoch=1, file="binlog.000001", offset=100 + 20 * index)


def opened(folder: Path) -> TableHistory:
    return TableHistory(folder / "schema.jsonl", lambda _, table: table.startswith("n"))


def begun(folder: Path, group: Group) -> TableHistory:
    history = opened(folder)
    facts = DdlServerFacts(flavour="mysql", charset="utf8mb4")
    history.seed(SchemaSnapshot(facts, ((group.database, "utf8mb4"),), ()), at(-1))
    return history


def states(history: TableHistory, index: int) -> States:
    found = {name: history.state(*name, at(index)) for name in history.table_names()}
    return {name: state for name, state in found.items() if state is not None}


def expected(factory: pytest.TempPathFactory, group: Group) -> tuple[list[str], list[States]]:
    """Returns the statements that a server would accept, and the states after each, read once from beginning to end."""
    if group.name not in EXPECTED:
        history = begun(factory.mktemp("straight"), group)
        taken: list[str] = []
        after: list[States] = []
        for sent in group.of("mysql80"):
            statement = statement_text(sent, "")
            index = len(taken)
            history.apply(statement, group.database, at(index))
            now = states(history, index)
            if any(isinstance(state, Stopped) and state.state == "SCHEMA_MISMATCH" for state in now.values()):
                history.rewind(at(index - 1))
                continue
            taken.append(statement)
            after.append(now)
        EXPECTED[group.name] = taken, after
    return EXPECTED[group.name]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_restart_or_a_return_between_any_two_statements_gives_the_same_schemas(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    group = GROUPS[data.draw(st.sampled_from(sorted(GROUPS)))]
    statements, wanted = expected(tmp_path_factory, group)
    folder = tmp_path_factory.mktemp("restarted")
    history = begun(folder, group)
    index = 0
    restarts = data.draw(st.sets(st.integers(0, len(statements) - 1), max_size=5))
    returns = data.draw(st.dictionaries(st.integers(0, len(statements) - 1), st.integers(1, 20), max_size=3))
    while index < len(statements):
        history.apply(statements[index], group.database, at(index))
        assert states(history, index) == wanted[index], statements[index]
        if index in restarts:
            history = opened(folder)
            assert states(history, index) == wanted[index], statements[index]
        index = max(0, index - returns.pop(index)) if index in returns else index + 1
    history = opened(folder)
    for index, state in enumerate(wanted):
        assert states(history, index) == state, statements[index]
