"""Tests a schema history that is compacted while the stream is read: how large the history becomes, and which states it still has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine import durable_files
from sluice.cdc_engine.errors import LeaseLostError
from sluice.cdc_engine.instance import published_history
from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.memory import MemoryRecordStore
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept import repository
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable
from sluice.cdc_engine.table_meta.history.kept.repository import Repository, SchemaRepository
from sluice.cdc_engine.table_meta.history.kept.shared_repository import SharedRepository
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter
from tests.fix_ledgers import at

MIN, TABLES, STATEMENTS, BEHIND = 20, 10, 400, 5
EMPTY = SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), ())


class Running:
    """Provides a schema history whose cursor is BEHIND statements behind the parser."""

    def __init__(self, folder: Path, kept: Repository, fence: Callable[[], None] = lambda: None) -> None:
        self.repository, self.cursor, self.loads = kept, at(10), 0
        history = TableHistory(kept, lambda _, __: True)
        history.seed(EMPTY, at(10))
        self.history = PublishedHistory(history, TableListWriter(folder), fence, kept=self._kept)
        self.most = 0

    def _kept(self) -> list[Position]:
        self.loads += 1
        return [self.cursor]

    def alter(self, number: int) -> None:
        table = f"t{number % TABLES}"
        text = f"ALTER TABLE {table} ADD c{number} int" if number >= TABLES else f"CREATE TABLE {table} (id int)"
        self.history.apply(text, "shop", at(20 + number))

    def run(self, count: int = STATEMENTS) -> None:
        for number in range(count):
            self.alter(number)
            self.cursor = at(max(10, 20 + number - BEHIND))
            self.most = max(self.most, len(self.repository.look()))

    def states(self, since: int) -> list[list[KnownTable]]:
        return [
            [self.history.state("shop", f"t{number}", at(offset)) for number in range(TABLES)]
            for offset in range(since, 20 + STATEMENTS)
        ]


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_history, "COMPACTED_RECORDS_MIN", MIN)


@pytest.fixture(params=["file", "shared"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Running:
    shared = request.param == "shared"
    return Running(tmp_path, SharedRepository(MemoryRecordStore(), 1) if shared else SchemaRepository(tmp_path / "s"))


@pytest.fixture(scope="module")
def uncompacted(tmp_path_factory: pytest.TempPathFactory) -> Running:
    """Returns a history that is never compacted, after the statements that `Running.run` executes. The tests only read it."""
    folder = tmp_path_factory.mktemp("uncompacted")
    found = Running(folder, SchemaRepository(folder / "whole"))
    found.history._kept = None
    for number in range(STATEMENTS):
        found.alter(number)
    return found


def test_a_history_reaches_twice_what_it_needs_and_no_more(running: Running, uncompacted: Running) -> None:
    running.run()
    needed = TABLES + BEHIND + 3  # Each table at the cursor, the statements after it, server, database and objects.
    assert 2 * TABLES < running.most <= needed + 2 * MIN
    assert running.loads <= STATEMENTS / MIN, "an attempt per MIN statements at most"
    assert len(uncompacted.repository.look()) > STATEMENTS
    since = 20 + STATEMENTS - BEHIND
    assert running.states(since) == uncompacted.states(since)
    again = TableHistory(running.repository, lambda _, __: True)
    assert again.versions(running.cursor) == uncompacted.history.versions(running.cursor)


def test_a_position_that_stands_still_keeps_its_records_and_costs_few_attempts(
    running: Running, uncompacted: Running
) -> None:
    for number in range(STATEMENTS):
        running.alter(number)
    assert running.loads <= STATEMENTS.bit_length(), "each attempt comes after twice as many records"
    assert running.states(10) == uncompacted.states(10)


def test_a_compaction_that_fails_is_tried_again_later(
    tmp_path: Path, uncompacted: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, replace, failed = Running(tmp_path, SchemaRepository(tmp_path / "s")), durable_files.replace_file, []

    def full(path: Path, content: bytes) -> None:
        failed.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(repository, "replace_file", full)
    running.run(STATEMENTS // 2)
    assert failed
    monkeypatch.setattr(repository, "replace_file", replace)
    for number in range(STATEMENTS // 2, STATEMENTS):
        running.alter(number)
        running.cursor = at(20 + number - BEHIND)
    assert len(running.repository.look()) < STATEMENTS / 2
    since = 20 + STATEMENTS - BEHIND
    assert running.states(since) == uncompacted.states(since)


def test_the_fence_is_checked_before_a_compaction(tmp_path: Path) -> None:
    lost: list[bool] = []

    def fence() -> None:
        if lost:
            raise LeaseLostError("another host has it")

    running = Running(tmp_path, SchemaRepository(tmp_path / "s"), fence)
    kept = running.history._kept
    apply = running.history._history.apply

    def applied(*given: object) -> object:
        changes = apply(*given)  # type: ignore[arg-type]
        if running.history._history.has_doubled(MIN):
            lost.append(True)
        return changes

    running.history._history.apply = applied  # type: ignore[method-assign, assignment]
    with pytest.raises(LeaseLostError):
        running.run()
    assert kept is not None
    assert running.loads == 0
