"""Tests the limits of reading a schema from a server, of the display of statements, and of file names."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history import review_files
from sluice.cdc_engine.table_meta.history.ddl_context import STATEMENT_CHARS_MAX, shortened
from sluice.cdc_engine.table_meta.history.source import live_schema, schema_snapshot

POSITION = Position(epoch=1, file="b.000001", offset=4)


def test_a_schema_that_never_rests_is_given_up_after_some_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def changing(*_: object) -> int:
        looks.append(len(looks))
        if len(looks) > 100:
            pytest.fail("it tries without end")
        return len(looks)

    monkeypatch.setattr(schema_snapshot, "read_snapshot", changing)
    with pytest.raises(SourceConnectionError, match="during each of 5 attempts to read the schemas"):
        schema_snapshot.stable_snapshot(cast("Any", None), lambda *_: True, lambda: POSITION)
    assert len(looks) == 1 + schema_snapshot.ATTEMPTS_MAX


def untouched(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, int]:
    """Returns what `_untouched` decides if `count` events follow the position, and how many events it requests at most."""
    requested: list[int] = []
    event = ("b.000001", 4, "Xid", 1, 35, "COMMIT /* xid=1 */")
    cursor = SimpleNamespace(
        execute=lambda _sql, arguments: requested.append(arguments[2]),
        fetchall=lambda: [event] * min(count, requested[0]),
    )
    monkeypatch.setattr(live_schema, "EVENTS_BEHIND_MAX", 10)
    return live_schema._untouched(cast("Any", cursor), "b.000001", 4, "orders", "mysql"), requested[0]


def test_a_position_too_far_behind_the_end_counts_as_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert untouched(10, monkeypatch) == (True, 11)
    assert untouched(11, monkeypatch) == (False, 11)
    assert untouched(1000, monkeypatch) == (False, 11)


def test_a_long_statement_is_shown_in_short() -> None:
    statement = "ALTER TABLE t ADD c int".ljust(STATEMENT_CHARS_MAX, "x")
    assert shortened(statement) == statement
    assert shortened(statement + "y" * 1000) == f"{statement} …"


def long_name(quoted: Callable[[str, str], str], character: str) -> str:
    return quoted("數" * 64, "據" * 63 + character)


def test_the_name_of_a_review_file_fits_a_file_system_and_is_unique() -> None:
    names = [long_name(review_files.quoted_name, character) for character in "ab"]
    assert len({*names}) == 2
    assert all(len(name) < review_files.NAME_CHARS_MAX for name in names)
    assert review_files.quoted_name("shop", "orders") == "shop+orders"
