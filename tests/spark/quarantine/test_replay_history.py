"""Tests the replay of quarantined values into a table with a history. Each value also becomes a version in the history, and the stream
continues both tables.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.quarantine.replay import put_back
from sluice.spark_jobs.session import open_sessions
from sluice.spark_jobs.side_tables.history import History
from tests.spark.conftest import Lake
from tests.spark.quarantine.test_replay_fault import NAME, NOTES, replayed, values
from tests.spark.staged import INSERT, UPDATE_AFTER, Changes, Image

pytestmark = pytest.mark.spark

HISTORY = f"{NAME}__history"


class DiesError(Exception):
    """The simulated kill of the command."""


@pytest.fixture
def notes(lake: Lake) -> Lake:
    """Creates a table with a history, in which the note of row 1 could not be decoded."""
    batch(lake, (INSERT, 16, 1, None), (INSERT, 16, 2, "b"))
    return lake


def batch(lake: Lake, *changes: tuple[int, int, int, str | None], history: bool = True) -> None:
    """Merges (operation, order key, id, note)."""
    images = [Image(operation, at, {"id": key, "note": note}) for operation, at, key, note in changes]
    lake.merge({NAME: [Changes(NOTES, images)]}, history=lake.path(HISTORY) if history else "")


def restore(lake: Lake) -> frozenset[int]:
    with open_sessions(lake.spark, 1, BY_HAND) as (session,):
        table = replayed(lake, session, target=lake.target(NAME, history=lake.path(HISTORY)))
        return put_back(table, "note", values(lake.folder))


def versions(lake: Lake) -> list[tuple[Any, ...]]:
    return lake.rows(HISTORY, "id", "note", "_sluice_from_order_key", "_sluice_to_order_key", "is_current")


def test_what_a_replay_put_back_is_a_version_of_its_history(notes: Lake) -> None:
    batch(notes, (UPDATE_AFTER, 32, 2, "B"))
    for _ in range(2):  # The batch is delivered twice.
        assert restore(notes) == {0}
    assert [row for row in versions(notes) if row[0] == 1] == [(1, None, 16, 32, False), (1, "ä", 32, None, True)]
    batch(notes, (UPDATE_AFTER, 48, 1, "c"))
    assert versions(notes) == [
        (1, None, 16, 32, False),
        (1, "c", 48, None, True),
        (1, "ä", 32, 48, False),
        (2, "B", 32, None, True),
        (2, "b", 16, 32, False),
    ]
    assert notes.rows(NAME, "id", "note") == [(1, "c"), (2, "B")]


def test_a_replay_that_dies_before_the_history_leaves_what_the_next_batch_completes(
    notes: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> bool:
        raise DiesError

    with monkeypatch.context() as patch:
        patch.setattr(History, "take", dies)
        with pytest.raises(DiesError):
            restore(notes)
    batch(notes, (UPDATE_AFTER, 48, 2, "B"))
    assert [row[:2] for row in versions(notes) if row[4]] == notes.rows(NAME, "id", "note") == [(1, "ä"), (2, "B")]


def test_a_replay_waits_for_a_history_that_lacks_a_batch(notes: Lake) -> None:
    """A run ended between its commit to the current-state table and its commit to the history. Following the advice in the error makes the
    tables equal.
    """
    batch(notes, (UPDATE_AFTER, 32, 2, "B"), history=False)
    with pytest.raises(TableError, match="wait for the next batch of the table, or re-snapshot the table"):
        restore(notes)
    assert notes.rows(NAME, "id", "note") == [(1, None), (2, "B")]
    batch(notes, (UPDATE_AFTER, 48, 2, "C"))
    assert restore(notes) == {0}
    assert [row[:2] for row in versions(notes) if row[4]] == notes.rows(NAME, "id", "note") == [(1, "ä"), (2, "C")]
