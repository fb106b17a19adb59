"""Tests the lock of a Delta table that several destinations write, with each kind of ledger. One run of all destinations and hosts holds
the lock. If the holder dies, the lock becomes free, and the next run gets the notes of the holder.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.destination_files import StoredTableLock, installation_id
from tests.ha.test_shared_lease_ha import KINDS, SHARED, holding_process, location_of
from tests.waiting import wait_for

TABLE = "/shop/orders"
RUN = """
import pickle, sys
from sluice.cdc_engine.destination_files import StoredTableLock
lock = StoredTableLock(pickle.loads(bytes.fromhex(sys.argv[1])), "shop/orders")
print(lock.try_take(), flush=True)
lock.write("what it left")
print("written", flush=True)
for line in sys.stdin:
    print(lock.held, flush=True)
"""


@pytest.fixture(params=KINDS)
def east(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    return location_of(request.param, request, tmp_path)


def other(location: LedgerLocation) -> LedgerLocation:
    """Returns the location of the ledger of another destination of the same conf/."""
    name = f"{location.destination}_west"
    return dataclasses.replace(location, destination=name, directory=location.directory.with_name(name))


def test_one_run_of_all_destinations_has_a_table_in_a_group(east: LedgerLocation) -> None:
    ours, theirs = StoredTableLock(east, TABLE), StoredTableLock(other(east), "shop/orders/")
    assert ours.try_take()
    assert not theirs.try_take()
    items = StoredTableLock(other(east), "shop/items")
    assert items.try_take()
    items.release()
    ours.write("of east")
    assert theirs.writer() == "of east"
    assert theirs.register_waiting()
    assert not StoredTableLock(east, TABLE).register_waiting()  # Another run waits already.
    ours.release()
    assert theirs.try_take()
    assert theirs.held
    assert not ours.held
    theirs.write("")
    assert not theirs.writer()
    theirs.release()
    assert installation_id(east) == installation_id(other(east))


def test_locks_of_another_folder_are_others_in_a_group(tmp_path: Path) -> None:
    one, two = (LedgerLocation(destination="shop", directory=tmp_path / each / "engine" / "shop") for each in "ab")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(installation_id(one))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    assert set(found) == {installation_id(one)}
    assert installation_id(two) not in found
    assert StoredTableLock(one, TABLE).try_take()
    assert StoredTableLock(two, TABLE).try_take()


def test_what_a_killed_run_left_is_known_to_the_next_run_in_a_group(east: LedgerLocation) -> None:
    with holding_process(east, RUN) as (run, said):
        assert [said(), said()] == ["True", "written"]
        theirs = StoredTableLock(other(east), TABLE)
        assert not theirs.try_take()
        run.kill()
        run.wait()
        wait_for("the lock is free", theirs.try_take, 30)
    assert theirs.writer() == "what it left"
    theirs.release()


@pytest.mark.servers
@pytest.mark.parametrize("kind", SHARED)
def test_ha_a_run_that_stood_still_knows_that_the_table_is_anothers_in_a_group(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    east = location_of(kind, request, tmp_path)
    with holding_process(east, RUN) as (run, said):
        assert [said(), said()] == ["True", "written"]
        run.send_signal(signal.SIGSTOP)
        theirs = StoredTableLock(other(east), TABLE)
        wait_for("the lock is free", theirs.try_take, 30)
        assert run.stdin is not None
        run.stdin.write(b"?\n")
        run.stdin.flush()
        run.send_signal(signal.SIGCONT)
        assert said() == "False"
    assert theirs.held
    theirs.release()
