"""Tests when a backfill is refused, what each refusal advises, and the figures of a plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.instance.rows import rules
from sluice.cdc_engine.instance.rows.rules import REFUSALS, REPAIR_ADVICE, RequestedInterval, TableFacts
from sluice.cdc_engine.parser.server_facts import BinaryLog
from sluice.cdc_engine.position import Position

READY = TableFacts(name="shop.orders", key=("id",))
LOGS = tuple(BinaryLog(file=f"b.{number:06}", size_bytes=1000 * number) for number in (1, 2, 3))


def position(file: int, offset: int, server: str = "one") -> Position:
    return Position(epoch=1, file=f"b.{file:06}", offset=offset, server_uuid=server)


# For each refusal, facts of a table that is refused for this reason only, and parts of the message.
REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"stop": "DDL_HELD"}, ("DDL_HELD", "resume the table first")),
    ({"snapshot": "READING"}, ("a snapshot of the table is READING", "wait until the snapshot ends")),
    ({"known": False}, ("are unknown, because the engine has read no change",)),
    ({"current_state": False}, ("no current-state table", "snapshot start")),
    ({"key": ()}, ("no key", "snapshot start")),
    ({"follows": True}, ("foreign keys", "snapshot start")),
    ({"statements": ("ALTER a", "TRUNCATE b", "c", "d")}, ("ALTER a; TRUNCATE b; c …", "later --from")),
    ({"unlike": "old.sql"}, ("columns of the table in old.sql", "a newer file in --schemas")),
    ({"unread": "column 1 (id): differs"}, ("column 1 (id): differs", "later --from")),
    ({"partial": True}, ("binlog_row_image",)),
    ({"quarantined": True}, ("cannot be decoded",)),
    ({"raised": "KeyError: 'a'"}, ("could not be read (KeyError: 'a')", "snapshot start")),
]


@pytest.mark.parametrize(("facts", "words"), REFUSED)
def test_a_table_that_cannot_be_read_again_is_refused_with_what_to_do_backfill(
    facts: dict[str, Any], words: tuple[str, ...]
) -> None:
    said = rules.refusal(dataclasses.replace(READY, **facts))
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"statements": ("ALTER a",)}, ("(ALTER a): start the repair again", "snapshot start")),
        ({"unread": "column 1 (id): differs"}, ("start the repair again", "snapshot start")),
        ({"partial": True}, ("start the repair again when less is written", "snapshot start")),
    ],
)
def test_a_repair_is_advised_to_start_again(facts: dict[str, Any], words: tuple[str, ...]) -> None:
    said = rules.refusal(dataclasses.replace(READY, **facts), REPAIR_ADVICE)
    assert all(word in said for word in words), said


def test_every_refusal_has_a_case_and_a_table_without_any_is_ready_backfill() -> None:
    assert not rules.refusal(READY)
    refused = [dataclasses.replace(READY, **facts) for facts, _ in REFUSED]
    assert all(any(is_met(table) for table in refused) for is_met, _ in REFUSALS)


def test_an_interval_holds_something_and_began_backfill() -> None:
    rules.check_request(RequestedInterval(from_us=5, to_us=6), now_us=7)
    rules.check_request(RequestedInterval(from_us=5, to_us=60), now_us=7)
    with pytest.raises(ConfigurationError, match="is not after"):
        rules.check_request(RequestedInterval(from_us=5, to_us=5), now_us=7)
    with pytest.raises(ConfigurationError, match="in the future"):
        rules.check_request(RequestedInterval(from_us=8), now_us=7)


def test_the_tables_are_the_requested_ones_or_all_backfill() -> None:
    assert rules.chosen(RequestedInterval(from_us=0), ("a.b", "a.c")) == ("a.b", "a.c")
    assert rules.chosen(RequestedInterval(from_us=0, tables=("a.c",)), ("a.b", "a.c")) == ("a.c",)
    with pytest.raises(ConfigurationError, match=r"the tables a\.d are not captured; captured tables: a\.b"):
        rules.chosen(RequestedInterval(from_us=0, tables=("a.d",)), ("a.b",))


def test_the_binlog_is_the_one_that_the_cursor_is_of_backfill() -> None:
    assert rules.check_source("shop", position(1, 4), "one") == position(1, 4)
    with pytest.raises(ActRefusedError, match="has no position yet"):
        rules.check_source("shop", None, "one")
    with pytest.raises(ActRefusedError, match="reached the new server"):
        rules.check_source("shop", position(1, 4), "two")


@pytest.mark.parametrize(
    ("begin", "end", "files", "size_bytes"),
    [
        (position(1, 400), position(3, 100), ["b.000001", "b.000002", "b.000003"], 600 + 2000 + 100),
        (position(2, 500), position(2, 700), ["b.000002"], 200),
        (position(3, 500), position(3, 500), ["b.000003"], 0),
    ],
)
def test_the_interval_to_read_is_between_two_positions_backfill(
    begin: Position, end: Position, files: list[str], size_bytes: int
) -> None:
    assert rules.files_between(LOGS, begin, end) == (files, size_bytes)


def test_a_part_stands_for_the_whole_backfill() -> None:
    assert rules.scaled(10, 100, 1000) == 100
    assert rules.scaled(10, 100, 50) == 10, "all of it was read"
    assert rules.seconds_expected(100, 2.0, 1000, tables=0, changes=0) == 20.0
    assert rules.seconds_expected(0, 0.0, 0, tables=1, changes=1) > rules.MERGE_SECONDS_A_TABLE
