"""Tests an engine whose lease another process took: it reports that, no longer reads or writes, and continues when that process dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import EngineStartingError, LeaseLostError, SluiceError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.keeping import launcher
from sluice.console.toolchain.database.server import DatabaseServer
from tests.ha.test_lease import holding_process
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def started() -> Engine | None:
    try:
        return launcher.get_or_start("shop")
    except EngineStartingError:
        return None


def refusal() -> str:
    """Returns the message with which the start is refused because of the lease. Returns "" if the start is not refused, or not decided
    yet.
    """
    try:
        launcher.get_or_start("shop")
    except EngineStartingError:
        return ""
    except LeaseLostError as error:
        return str(error)
    return ""


def test_a_lost_lease_is_a_state_and_the_engine_takes_over_when_the_holder_dies(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = Captured(tmp_path, mysql80)
    monkeypatch.setenv("SLUICE_CONF", str(captured.conf))
    try:
        first = wait_for("the engine has started", started)
        captured.insert(range(3))
        assert captured.take(first, 3) == [0, 1, 2]
        captured.insert([3])
        before = wait_for("a batch is staged", lambda: first.hand_out(0.5))
        (captured.directory / "lease.lock").unlink()
        with holding_process(captured.directory) as (holder, answer):
            assert answer == b"True 2"
            wait_for("the engine knows it", lambda: first.status().state == "LEASE_LOST")
            # The engine may check its lease before the other process has taken the new lock file. Then the reason names no other process.
            assert "is not held by this process" in first.status().reason
            with pytest.raises(SluiceError):
                first.ack(before)
            assert f"process {holder.pid} on" in wait_for("the engine waits", refusal)
            with pytest.raises(SluiceError, match="is not started"):
                first.status()
            captured.insert([4])
            assert read_ledger(captured.directory).head == before, "nothing was written without the lease"
        second = wait_for("another engine has taken over", started)
        assert second is not first
        captured.insert([5])
        assert captured.take(second, 3) == [3, 4, 5]
    finally:
        launcher.stop_all()
