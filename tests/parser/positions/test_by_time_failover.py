"""Tests which interval cannot be read again after a failover by time: an interval with a statement about a captured table, an XA commit of
an earlier transaction, or partial rows.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time

import numpy as np
import pytest

from sluice.cdc_engine.contracts import NO_SESSION, Block, LoggedStatement
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.by_time import not_repeatable, start_by_time
from sluice.cdc_engine.parser.positions.time_search import (
    LATE_US,
    SearchedInterval,
    blocks_without_rows,
    interval_of,
    read_again,
)
from sluice.cdc_engine.parser.server_facts import ServerFacts, read_facts
from sluice.cdc_engine.parser.start_position import NO_EPOCHS, Lost, StartChoice
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source as SourceServer
from sluice.cdc_engine.time_text import SECOND_US
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_blocks import Source
from tests.parser.fix_shop import make_shop, run
from tests.parser.recording import source_of

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


@pytest.mark.found
@pytest.mark.parametrize("seconds", [20, 90])
def test_failover_by_time_counts_what_the_binlog_has_before_a_commit_that_took_long(seconds: int) -> None:
    """Defect 1126: MariaDB logs when a statement began. So a RENAME that was read before a long UPDATE had a later time than the UPDATE.
    It did not count as read again, and was applied twice.
    """
    began = READ_US + seconds * SECOND_US
    blocks = [at(began, "RENAME"), at(READ_US), at(began, "later")]
    assert [each.text for each in interval_of(blocks, [], READ_US).statements] == ["RENAME"]
    prepared = ["x"]
    assert interval_of([at(began), at(READ_US)], prepared, READ_US).commits == ["x"]


@pytest.mark.found
def test_failover_by_time_counts_an_xa_commit_in_a_block_that_ends_later() -> None:
    """Defect 1126: only the last commit of a block counted, so an XA COMMIT before it was not found."""
    block = dataclasses.replace(
        Source().block([0, 0]), transaction_time_us=np.array([READ_US, READ_US + 9 * SECOND_US])
    )
    assert interval_of([block], ["x"], READ_US).commits == ["x"]


@pytest.mark.found
@pytest.mark.servers
@pytest.mark.parametrize("fixture", ["mysql57", "mysql80", "mariadb114"])
def test_failover_by_time_finds_a_statement_before_a_long_one_on_a_server(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """Defect 1126: the RENAME was read before the end of the INSERT, but did not count as read again."""
    server: DatabaseServer = request.getfixturevalue(fixture)
    make_shop(server)
    run(server, "CREATE TABLE shop.slow (a INT)")

    def end() -> Position:
        with contextlib.closing(SourceConnection(source_of(server))) as connection:
            facts = read_facts(connection)
        return Position(epoch=1, file=facts.file, offset=facts.offset, server_uuid=facts.server_uuid)

    begin = end()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        long = pool.submit(run, server, "INSERT INTO shop.slow SELECT SLEEP(6)")
        time.sleep(3)
        run(server, "RENAME TABLE shop.orders TO shop.items")
        long.result()
    with contextlib.closing(SourceConnection(source_of(server))) as connection:
        files = BinlogFiles(source_of(server), read_facts(connection))
    choice = StartChoice(file=begin.file, offset=begin.offset)
    times = [
        int(each)
        for block in blocks_without_rows(files, choice.file, choice.offset)
        for each in block.transaction_time_us
    ]
    found = read_again(files, choice, times[-1])
    assert [each.text for each in found.statements] == ["RENAME TABLE shop.orders TO shop.items"]


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
