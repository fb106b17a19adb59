"""Tests the decision where a stream starts: at the saved cursor, at a configured position, at the latest position, or nowhere, because the
position is lost.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.gtid import GtidSet
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import DumpStart, Epochs, Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
LATEST = StartChoice()
LOGS = (BinaryLog(file="binlog.000003", size_bytes=900), BinaryLog(file="binlog.000004", size_bytes=500))
MYSQL = ServerFacts(
    version="8.0.31",
    mariadb=False,
    server_uuid=A,
    gtid_enabled=True,
    executed=f"{A}:1-100",
    purged=f"{A}:1-40",
    file="binlog.000004",
    offset=500,
    logs=LOGS,
)
WITHOUT_GTID = dataclasses.replace(MYSQL, gtid_enabled=False, executed="", purged="")
MARIADB = dataclasses.replace(
    MYSQL, version="11.4.5-MariaDB", mariadb=True, server_uuid="mariadb-1", executed="0-1-100", purged=""
)
CURSOR = Position(epoch=2, file="binlog.000003", offset=700, gtid_set=f"{A}:1-60", server_uuid=A, time_us=5)


def started(cursor: Position | None, facts: ServerFacts, choice: StartChoice = LATEST) -> DumpStart:
    decision = decide_start(cursor, choice, facts)
    assert isinstance(decision, DumpStart), decision
    return decision


def lost(cursor: Position | None, facts: ServerFacts, choice: StartChoice = LATEST) -> str:
    decision = decide_start(cursor, choice, facts)
    assert isinstance(decision, Lost), decision
    assert decision.options
    assert decision.reason in str(decision)
    return decision.reason


def test_a_cursor_wins_over_the_configuration_and_goes_by_gtid() -> None:
    start = started(CURSOR, MYSQL, StartChoice(file="binlog.000004", offset=4))
    assert start == DumpStart(position=CURSOR, by_gtid=True, executed_known=True)


def test_without_gtid_mode_a_cursor_goes_by_file() -> None:
    assert started(CURSOR, WITHOUT_GTID).by_gtid is False
    bare = dataclasses.replace(CURSOR, gtid_set="")
    assert started(bare, MYSQL) == DumpStart(position=bare, by_gtid=False, executed_known=False)


def test_another_server_that_proves_continuity_begins_a_new_epoch() -> None:
    other = dataclasses.replace(MYSQL, server_uuid=B, executed=f"{A}:1-100,{B}:1-5", logs=(), file="mysql-bin.000001")
    start = started(CURSOR, other)
    assert start.by_gtid
    assert start.position == dataclasses.replace(CURSOR, epoch=3, file="", offset=4, server_uuid=B)
    assert started(start.position, other).position == start.position


def test_a_renamed_binlog_of_the_same_server_begins_a_new_epoch() -> None:
    renamed = dataclasses.replace(MYSQL, file="other.000001", logs=(BinaryLog(file="other.000001", size_bytes=4),))
    assert started(CURSOR, renamed).position.epoch == 3


def test_another_server_without_gtids_is_lost() -> None:
    assert "only if both servers have GTIDs" in lost(CURSOR, dataclasses.replace(WITHOUT_GTID, server_uuid=B))


def test_purged_transactions_are_named() -> None:
    behind = dataclasses.replace(CURSOR, gtid_set=f"{A}:1-30")
    assert f"{A}:31-40" in lost(behind, MYSQL)


def test_a_server_that_never_had_what_was_read_is_named() -> None:
    ahead = dataclasses.replace(CURSOR, gtid_set=f"{A}:1-60,{B}:7")
    assert f"{B}:7" in lost(ahead, MYSQL)
    assert "not executed" in lost(dataclasses.replace(CURSOR, gtid_set="0-1-101"), MARIADB_SAME)


MARIADB_SAME = dataclasses.replace(MARIADB, server_uuid=A)


def test_a_reset_binlog_is_noticed_though_the_gtids_fit() -> None:
    later = dataclasses.replace(CURSOR, file="binlog.000009")
    assert "reset" in lost(later, MYSQL)
    assert "reset" in lost(later, WITHOUT_GTID)


def test_a_file_that_is_gone_or_too_short_is_lost() -> None:
    assert "purged" in lost(dataclasses.replace(CURSOR, file="binlog.000002"), WITHOUT_GTID)
    assert "after the end" in lost(dataclasses.replace(CURSOR, offset=901), WITHOUT_GTID)
    assert started(dataclasses.replace(CURSOR, offset=900), WITHOUT_GTID)


def test_a_configured_file_does_not_know_what_was_executed() -> None:
    start = started(None, MYSQL, StartChoice(file="binlog.000003", offset=200, gtid_set=f"{A}:1-50"))
    expected = Position(epoch=1, file="binlog.000003", offset=200, server_uuid=A)
    assert start == DumpStart(position=expected, by_gtid=False, executed_known=False)
    assert "purged" in lost(None, MYSQL, StartChoice(file="binlog.000001"))


def test_a_configured_gtid_set_is_checked_as_a_cursor_is() -> None:
    start = started(None, MYSQL, StartChoice(gtid_set=f" {A.upper()}:1-50 "))
    assert (start.by_gtid, start.position.gtid_set, start.position.file) == (True, f"{A}:1-50", "")
    assert "purged" in lost(None, MYSQL, StartChoice(gtid_set=f"{A}:1-20"))
    assert "gtid_mode" in lost(None, WITHOUT_GTID, StartChoice(gtid_set=f"{A}:1-50"))
    with pytest.raises(ConfigurationError, match="MariaDB"):
        decide_start(None, StartChoice(gtid_set=f"{A}:1-50"), MARIADB)


def test_the_latest_position_is_chosen_by_gtid_where_there_are_any() -> None:
    start = started(None, MYSQL)
    assert (start.by_gtid, start.executed_known) == (True, True)
    assert (start.position.file, start.position.offset, start.position.epoch) == ("binlog.000004", 500, 1)
    assert not started(None, WITHOUT_GTID).by_gtid
    assert not started(None, dataclasses.replace(MARIADB, executed="")).by_gtid
    assert "did not report the end of its binlog" in lost(None, dataclasses.replace(MYSQL, file=""))


def test_a_tagged_set_goes_by_gtid_also_on_another_server() -> None:
    tagged = dataclasses.replace(CURSOR, gtid_set=f"{A}:1-60:night:1")
    executed = dataclasses.replace(MYSQL, executed=f"{MYSQL.executed}:night:1-3", server_uuid=B)
    assert started(tagged, executed).by_gtid
    assert lost(tagged, MYSQL)


numbers = st.sets(st.integers(1, 12), max_size=12)


def gtids(transactions: set[int]) -> str:
    result = GtidSet()
    for number in transactions:
        result = result.add(A, number, number)
    return str(result)


@settings(deadline=None)
@given(numbers, numbers, numbers, st.booleans())
def test_a_stream_by_gtid_starts_only_when_it_will_see_everything(
    taken: set[int], executed: set[int], purged: set[int], same_server: bool
) -> None:
    purged &= executed
    cursor = dataclasses.replace(CURSOR, gtid_set=gtids(taken | {1}))
    facts = dataclasses.replace(
        MYSQL, server_uuid=A if same_server else B, executed=gtids(executed | {1}), purged=gtids(purged)
    )
    decision = decide_start(cursor, LATEST, facts)
    complete = (taken | {1}) <= (executed | {1}) and purged <= (taken | {1})
    assert isinstance(decision, DumpStart) == complete
    if isinstance(decision, DumpStart):
        assert decision.position.epoch == CURSOR.epoch + (not same_server)


OTHER_FILE = {"binlog.000003": 2_000}
WITH_CREATION = dataclasses.replace(CURSOR, file_created=1_000)


def test_identity_the_cursor_s_own_file_continues() -> None:
    same = dataclasses.replace(MYSQL, created={"binlog.000003": 1_000})
    assert started(WITH_CREATION, same).position == WITH_CREATION
    assert started(WITH_CREATION, MYSQL).position == WITH_CREATION  # The server could not be queried.


def test_identity_another_file_of_the_same_name_is_lost_without_gtids() -> None:
    other = dataclasses.replace(WITHOUT_GTID, created=OTHER_FILE)
    assert "was created at" in lost(WITH_CREATION, other)
    assert started(CURSOR, other)  # This cursor does not know the time.


def test_identity_renumbered_files_are_a_new_epoch_where_all_that_was_read_was_purged() -> None:
    """RESET BINARY LOGS AND GTIDS runs, and then gtid_purged is set to what was executed before."""
    reset = dataclasses.replace(MYSQL, created=OTHER_FILE, purged=f"{A}:1-60")
    moved = started(WITH_CREATION, reset)
    assert moved.by_gtid
    assert (moved.position.epoch, moved.position.file, moved.position.file_created) == (3, "", 0)
    behind = dataclasses.replace(CURSOR, file="binlog.000009")
    assert started(behind, dataclasses.replace(MYSQL, purged=f"{A}:1-60")).position.epoch == 3


def test_identity_gtids_that_the_server_wrote_once_more_prove_nothing() -> None:
    """A backup of GTID 1-40 is restored, then 41-100 are written again: the cursor's 41-60 were other transactions."""
    assert f"{A}:41-60" in lost(WITH_CREATION, dataclasses.replace(MYSQL, created=OTHER_FILE))
    of_mariadb = dataclasses.replace(WITH_CREATION, gtid_set="0-1-60", server_uuid="mariadb-1")
    assert "0-1-60" in lost(of_mariadb, dataclasses.replace(MARIADB, created=OTHER_FILE))
    proven = dataclasses.replace(MARIADB, created=OTHER_FILE, purged="0-1-60")
    assert started(of_mariadb, proven).position.epoch == 3


def test_identity_purged_files_prove_continuity_only_if_all_that_was_read_is_before_the_rest() -> None:
    """A backup is restored, the server uses the same GTIDs again, and the files are purged past the cursor's file. No file is left that
    could be compared.
    """
    gone = dataclasses.replace(CURSOR, file="binlog.000002")
    assert "used these GTIDs again" in lost(gone, MYSQL)
    assert started(gone, dataclasses.replace(MYSQL, purged=f"{A}:1-60")).position == gone
    of_mariadb = dataclasses.replace(gone, gtid_set="0-1-60", server_uuid="mariadb-1")
    assert "used these GTIDs again" in lost(of_mariadb, dataclasses.replace(MARIADB, purged="0-1-40"))
    for purged in ("0-1-60", ""):  # Empty means that the server did not report it.
        assert started(of_mariadb, dataclasses.replace(MARIADB, purged=purged)).position == of_mariadb
    elsewhere = dataclasses.replace(MYSQL, server_uuid=B, executed=f"{A}:1-100,{B}:1-5")
    assert started(gone, elsewhere).position.epoch == 3


def test_identity_a_file_that_is_shorter_than_what_was_read_of_it_is_lost_whatever_the_gtids_say() -> None:
    read_further = dataclasses.replace(CURSOR, offset=901)
    assert "ends at 900" in lost(read_further, MYSQL)
    assert started(dataclasses.replace(CURSOR, offset=900), MYSQL)


def test_identity_a_first_position_knows_when_its_file_was_created() -> None:
    requested = dataclasses.replace(MYSQL, created={"binlog.000004": 3_000})
    assert started(None, requested).position.file_created == 3_000
    assert started(None, requested, StartChoice(file="binlog.000004", offset=4)).position.file_created == 3_000


def test_identity_a_new_epoch_is_above_all_that_were_ever_begun() -> None:
    other = dataclasses.replace(MYSQL, server_uuid=B, executed=f"{A}:1-100,{B}:1-5", logs=(), file="mysql-bin.000001")
    assert epoch_of(CURSOR, other, Epochs(highest=2)) == 3
    # On server B, a batch of epoch 3 was merged in part. Then the failover to C follows.
    assert epoch_of(CURSOR, other, Epochs(highest=3)) == 4
    assert epoch_of(CURSOR, other, Epochs(highest=7)) == 8


def test_identity_back_on_the_first_server_the_first_epoch_is_not_used_again() -> None:
    assert epoch_of(CURSOR, MYSQL, Epochs(highest=2)) == 2
    assert epoch_of(CURSOR, MYSQL, Epochs(highest=3)) == 4
    assert epoch_of(CURSOR, WITHOUT_GTID, Epochs(highest=3)) == 4
    assert epoch_of(None, MYSQL, Epochs(highest=5)) == 5  # Nothing was read in this epoch yet.


def test_identity_no_epoch_begins_while_a_batch_cannot_be_finished() -> None:
    unfinished = Epochs(highest=2, unfinished="the batch up to binlog.000003:800 may be merged in part")
    other = dataclasses.replace(MYSQL, server_uuid=B, executed=f"{A}:1-100,{B}:1-5", logs=(), file="mysql-bin.000001")
    assert isinstance(decide_start(CURSOR, LATEST, MYSQL, unfinished), DumpStart)
    for facts, epochs in ((other, unfinished), (MYSQL, dataclasses.replace(unfinished, highest=3))):
        decision = decide_start(CURSOR, LATEST, facts, epochs)
        assert isinstance(decision, Lost)
        assert "merged in part" in decision.reason


def epoch_of(cursor: Position | None, facts: ServerFacts, epochs: Epochs) -> int:
    decision = decide_start(cursor, LATEST, facts, epochs)
    assert isinstance(decision, DumpStart), decision
    return decision.position.epoch
