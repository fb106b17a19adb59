"""Tests the table locks of a Delta table that several destinations write: statements of a dead run are ended before another run writes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.destination_files import StoredTableLock
from sluice.spark_jobs import table_locks as room
from sluice.spark_jobs.errors import SparkUnavailableError, TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.table_locks import TableLocks, Writing
from tests.waiting import wait_for

NAME, PATH = "shop.orders", "/lake/shop/orders"
OURS = Writing(who="run 2 of west", host="a", remote="sc://127.0.0.1:15002", sessions=("s2",))
THEIRS = Writing(who="run 1 of east", host="a", remote="sc://127.0.0.1:15002", sessions=("s1",))


class Killed(BaseException):
    """Simulates the end of the process at this point."""


@dataclasses.dataclass
class Destinations:
    """Provides destinations with one location of locks. `ended` has the Spark address and the id of each session that was ended."""

    folder: Path
    ended: list[tuple[str, str]]

    def lock(self, _: str = PATH, destination: str = "west") -> StoredTableLock:
        return StoredTableLock(LedgerLocation(destination=destination, directory=self.folder / destination), PATH)

    def end(self, remote: str, ids: Sequence[str]) -> bool:
        self.ended += [(remote, each) for each in ids]
        return False

    def table_locks(self, wait_seconds: float = 0.3) -> TableLocks:
        return TableLocks(lock=self.lock, who=OURS.who, wait_seconds=wait_seconds)

    @contextlib.contextmanager
    def held(self, writing: Writing = THEIRS) -> Iterator[StoredTableLock]:
        lock = self.lock(destination="east")
        assert lock.try_take()
        lock.write(writing.to_text())
        yield lock
        lock.release()


@pytest.fixture
def destinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Destinations:
    found = Destinations(tmp_path, [])
    monkeypatch.setattr(room, "end_sessions", found.end)
    return found


def take(destinations: Destinations, *, writing: Writing = OURS, wait_seconds: float | None = None) -> bool:
    with destinations.table_locks().at(NAME, PATH, writing, BY_HAND, shared=True, wait_seconds=wait_seconds) as ours:
        return ours


def killed_amid(destinations: Destinations, location: str) -> None:
    with destinations.table_locks().at(NAME, PATH, OURS, BY_HAND, shared=True):
        if location == "writes":
            raise Killed


def lost_amid(destinations: Destinations) -> None:
    with destinations.table_locks().at(NAME, PATH, OURS, BY_HAND, shared=True):
        for file in destinations.folder.glob("_sluice_tables/*.lock"):
            file.unlink()


def test_a_table_lock_waits_for_the_other_and_then_names_its_holder_in_a_group(destinations: Destinations) -> None:
    with destinations.held():
        assert not take(destinations, wait_seconds=0.0)
        with pytest.raises(
            TableError,
            match=r"waited 0.3 s for the lock of the Delta table /lake/shop/orders, .*, and run 1 of east holds it",
        ) as caught:
            take(destinations)
        assert not caught.value.own
    assert take(destinations)


def test_a_run_that_waits_gets_the_table_lock_before_one_that_comes_back_in_a_group(destinations: Destinations) -> None:
    """A draining run releases the lock and soon requests it again. Without this order, it would get the lock again between two attempts of
    the run that waits.
    """
    got = threading.Event()

    def wait() -> None:
        with destinations.table_locks(30.0).at(NAME, PATH, OURS, BY_HAND, shared=True):
            got.set()

    with destinations.held() as lock:
        waits = threading.Thread(target=wait)
        waits.start()
        wait_for("the other waits", lambda: not destinations.lock().register_waiting())
        lock.release()
        assert not take(destinations, wait_seconds=0.0) or got.is_set()
    waits.join(30)
    assert got.is_set()


def test_a_table_of_one_source_has_no_table_lock(destinations: Destinations) -> None:
    with destinations.held(), destinations.table_locks().at(NAME, PATH, OURS, BY_HAND, shared=False) as ours:
        assert ours


def test_what_a_dead_run_left_is_ended_before_anything_is_written_in_a_group(destinations: Destinations) -> None:
    with destinations.held():
        pass
    assert take(destinations)
    assert destinations.ended == [(THEIRS.remote, "s1")]
    assert take(destinations)  # The registration was withdrawn.
    assert len(destinations.ended) == 1


@pytest.mark.parametrize("location", ["left", "writes", "back"])
def test_a_run_that_is_killed_with_a_table_lock_leaves_what_the_next_one_needs_in_a_group(
    destinations: Destinations, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed before it records its sessions has written nothing. From this record until its removal, the next run finds the
    sessions and ends them.
    """
    written: list[str] = []

    def write(lock: StoredTableLock, text: str) -> None:
        if (location == "left" and text) or (location == "back" and not text):
            raise Killed
        written.append(text)
        keep(lock, text)

    keep = StoredTableLock.write
    monkeypatch.setattr(StoredTableLock, "write", write)
    with pytest.raises(Killed):
        killed_amid(destinations, location)
    monkeypatch.setattr(StoredTableLock, "write", keep)
    assert bool(written) == (location != "left")
    assert take(destinations)
    assert destinations.ended == ([] if location == "left" else [(OURS.remote, "s2")])


def test_where_spark_went_away_its_statement_may_continue_in_a_group(destinations: Destinations) -> None:
    with pytest.raises(SparkUnavailableError), destinations.table_locks().at(NAME, PATH, OURS, BY_HAND, shared=True):
        raise SparkUnavailableError("gone")
    assert take(destinations)
    assert destinations.ended == [(OURS.remote, "s2")]
    with pytest.raises(TableError), destinations.table_locks().at(NAME, PATH, OURS, BY_HAND, shared=True):
        raise TableError(NAME, "Spark refused it")
    assert take(destinations)
    assert len(destinations.ended) == 1


def test_a_spark_that_this_host_does_not_reach_is_waited_for_in_a_group(
    destinations: Destinations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address 127.0.0.1 in another host's record means another Spark, which a run on this host cannot reach. The table fails until that
    Spark has ended the statements itself, as Spark does when no client waits for them.
    """
    with destinations.held(dataclasses.replace(THEIRS, host="b")):
        pass
    for _ in range(2):
        with pytest.raises(TableError, match="run 1 of east ended during a commit to the Delta table") as caught:
            take(destinations)
        assert not caught.value.own
    assert not destinations.ended
    monkeypatch.setattr(room, "DETACHED_SECONDS", 0.0)
    assert take(destinations)
    with destinations.held(dataclasses.replace(THEIRS, host="b", remote="sc://spark:15002")):
        pass
    assert take(destinations, writing=dataclasses.replace(OURS, remote="sc://spark:15002"))
    assert destinations.ended == [("sc://spark:15002", "s1")]


def test_a_table_lock_that_was_lost_meanwhile_fails_the_table_in_a_group(destinations: Destinations) -> None:
    with pytest.raises(TableError, match="was lost while the table was written") as caught:
        lost_amid(destinations)
    assert not caught.value.own


def test_locks_that_do_not_answer_fail_the_table_and_stop_it_not_in_a_group(destinations: Destinations) -> None:
    destinations.folder.joinpath("_sluice_tables").write_text("no folder")
    with pytest.raises(TableError, match="cannot be taken") as caught:
        take(destinations)
    assert not caught.value.own
