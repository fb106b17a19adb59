"""Tests what the time that is read twice after a failover by the clock must not contain: statements about a captured table, XA commits of
earlier transactions, partial rows.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.contracts import NO_SESSION, Block, LoggedStatement
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.positions.by_time import not_repeatable, start_by_time
from sluice.cdc_engine.parser.positions.time_search import LATE_US, SearchedInterval, interval_of
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import NO_EPOCHS, Lost, StartChoice
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source as SourceServer
from sluice.cdc_engine.time_text import SECOND_US
from tests.fix_blocks import Source

READ_US = 1_700_000_000 * SECOND_US + 5
SERVER = SourceServer(destination="shop", host="two", port=3306, user="sluice", server_id=7)
FACTS = ServerFacts(version="8.0.31", mariadb=False, server_uuid="two", gtid_enabled=False)
CURSOR = Position(epoch=2, file="binlog.000003", offset=700, server_uuid="one", time_us=READ_US)


def statement(text: str, seconds: int = 0) -> LoggedStatement:
    return LoggedStatement(
        text=text, database="shop", offset=4, length=40, seconds=seconds, server=1, session=NO_SESSION
    )


def at(time_us: int, text: str = "") -> Block:
    block = Source(time_us=time_us).block([0])
    return dataclasses.replace(block, statement=statement(text)) if text else block


@pytest.mark.parametrize(
    ("blocks", "reached", "texts"),
    [
        ([at(READ_US - SECOND_US)], False, []),
        ([at(READ_US - SECOND_US, "one"), at(READ_US)], True, ["one"]),
        ([at(READ_US), at(READ_US + LATE_US, "late"), at(READ_US + LATE_US + 1, "later")], True, ["late"]),
        ([at(0), at(0)], False, []),
    ],
    ids=["behind", "within", "logged-later", "beginnings"],
)
def test_failover_by_time_looks_through_what_comes_again(blocks: list[Block], reached: bool, texts: list[str]) -> None:
    interval = interval_of(blocks, [], READ_US)
    assert (interval.reached, [each.text for each in interval.statements]) == (reached, texts)


def test_failover_by_time_counts_a_statement_within_a_transaction_by_its_own_time() -> None:
    amid = dataclasses.replace(Source().block([]), statement=statement("CREATE", seconds=READ_US // SECOND_US))
    later = dataclasses.replace(amid, statement=statement("CREATE", seconds=READ_US // SECOND_US + 30))
    assert len(interval_of([amid, at(READ_US), later], [], READ_US).statements) == 1


def test_failover_by_time_counts_what_was_prepared_before_only_where_it_was_committed_in_it() -> None:
    for time_us, expected in ((READ_US, ["x"]), (READ_US + LATE_US + 1, [])):
        assert interval_of([at(time_us)], ["x"], READ_US).commits == expected
    open_first = [Source().block([]), at(READ_US)]
    assert interval_of(open_first, ["x"], READ_US).commits == ["x"]


def test_failover_by_time_names_what_nothing_takes_twice() -> None:
    def changed(each: LoggedStatement) -> str:
        return "shop.orders" if "orders" in each.text else ""

    plain = SearchedInterval(reached=True, statements=[statement("GRANT")])
    assert not_repeatable(plain, changed) == ""
    plain.statements.append(statement("ALTER TABLE orders"))
    assert "changed shop.orders" in not_repeatable(plain, changed)
    assert "XA transaction x was committed" in not_repeatable(SearchedInterval(reached=True, commits=["x"]), changed)


def test_failover_by_time_goes_back_as_far_as_conf_says(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def found(_files: object, time_us: int) -> StartChoice:
        searched.append(time_us)
        raise PositionLostError("nothing is so old")

    monkeypatch.setattr("sluice.cdc_engine.parser.positions.by_time.choice_at", found)
    for seconds in (60, 300):
        assert isinstance(
            start_by_time(SERVER, lambda _statement: "", CURSOR, FACTS, NO_EPOCHS, back_seconds=seconds), Lost
        )
    assert searched == [CURSOR.time_us - 60_000_000, CURSOR.time_us - 300_000_000]


@pytest.mark.parametrize("image", ["MINIMAL", "noblob", "FULL_NODUP"])
def test_failover_by_time_is_not_for_rows_that_are_not_logged_whole(image: str) -> None:
    facts = dataclasses.replace(FACTS, variables={"binlog_row_image": image})
    lost = start_by_time(SERVER, lambda _statement: "", CURSOR, facts, NO_EPOCHS, back_seconds=60)
    assert isinstance(lost, Lost)
    assert not lost.not_yet
    for words in (
        f"is {image.upper()}",
        "Safe options: restore the server",
        "re-snapshot the tables",
    ):
        assert words in str(lost)
