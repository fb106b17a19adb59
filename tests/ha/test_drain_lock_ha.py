"""Tests two locks for runs on several hosts, on real servers. With the drain lock, only one run drains at a time. The other lock shows that
a process waits for the run lock.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation
from sluice.cdc_engine.destination_files import drain_lock, drain_lock_held, run_lock, run_lock_wanted
from tests.ha.test_shared_lease_ha import holding_process, location, shared
from tests.waiting import wait_for

__all__ = ["location", "shared"]

DRAINING = """
import pickle, sys
from sluice.cdc_engine.contracts import DestinationDir
from sluice.cdc_engine.destination_files import drain_lock
location = pickle.loads(bytes.fromhex(sys.argv[1]))
with drain_lock(DestinationDir.of(location)) as why_not:
    print(not why_not(), flush=True)
    for line in sys.stdin:
        print(not why_not(), flush=True)
"""


def other_host(location: LedgerLocation, root: Path) -> DestinationDir:
    """Returns the directory of the destination on another host, which shares the ledger and no file."""
    folder = root / "other" / location.destination
    return DestinationDir.of(
        dataclasses.replace(location, directory=folder if location.is_shared else location.directory)
    )


def test_ha_one_run_drains_at_a_time_over_all_hosts(location: LedgerLocation, tmp_path: Path) -> None:
    here, there = DestinationDir.of(location), other_host(location, tmp_path)
    assert not drain_lock_held(there)
    with drain_lock(here) as why_not:
        assert not why_not()
        assert drain_lock_held(there), "the ticks of another host see it"
        with drain_lock(there, 0.0) as why_not_other:
            assert "already merges its batches" in why_not_other()
        assert not why_not()
    assert not drain_lock_held(there)


@pytest.mark.servers
def test_ha_a_run_that_drains_and_was_killed_is_replaced_by_the_next_run(shared: LedgerLocation) -> None:
    """Each run is a new process, which has not seen how long the killed run has been silent."""
    with holding_process(shared, DRAINING) as (process, said):
        assert said() == "True"
        process.kill()
        process.wait()
        with holding_process(shared, DRAINING) as (_, next_said):
            assert next_said() == "True"


@pytest.mark.servers
def test_ha_a_run_that_stood_still_does_not_drain_any_more(shared: LedgerLocation) -> None:
    with holding_process(shared, DRAINING) as (process, said):
        assert said() == "True"
        process.send_signal(signal.SIGSTOP)
        with drain_lock(DestinationDir.of(shared)) as why_not:
            wait_for("another run drains", lambda: not why_not(), 60)
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write(b"?\n")
            process.stdin.flush()
            assert said() == "False"


def test_ha_a_process_that_waits_for_the_run_lock_on_another_host_is_seen(
    location: LedgerLocation, tmp_path: Path
) -> None:
    here, there, taken = DestinationDir.of(location), other_host(location, tmp_path), threading.Event()

    def wait_for_it() -> None:
        with run_lock(there, 60.0):
            taken.set()

    thread = threading.Thread(target=wait_for_it)
    with run_lock(here):
        assert not run_lock_wanted(here)
        thread.start()
        wait_for("it is seen to wait", lambda: run_lock_wanted(here))
    assert taken.wait(60)
    thread.join(60)
    assert not run_lock_wanted(here)
