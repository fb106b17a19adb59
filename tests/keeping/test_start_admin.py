"""Tests that `instance start` and `instance release` say what they did, and why they changed nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sluice.cdc_engine.ha.leases import open_lease
from sluice.cdc_engine.keeping import acts, launcher, orders
from sluice.cdc_engine.operation import operator
from sluice.cdc_engine.operation.alarms import Alarm, failed


@pytest.mark.found
def test_admin_a_start_of_an_engine_that_is_not_stopped_says_that_it_changes_nothing(tmp_path: Path) -> None:
    """Defect 18: `instance start` waited for 40 s and did not say that there was no stop to remove."""
    reported = acts.start("shop", tmp_path, seconds=0.0)
    assert not reported.done
    assert reported.message.startswith(
        "nothing was changed: no operator had stopped shop, and no process runs the engine"
    )
    assert (
        "Start an engine process with `sluice up` or `sluice engine`; if one runs already, it tries again"
        in reported.message
    )
    with contextlib.ExitStack() as ending:
        lease = open_lease(tmp_path)
        ending.callback(lease.release)
        assert lease.try_acquire()
        reported = acts.start("shop", tmp_path, seconds=0.0)
        assert reported.done
        assert "no operator had stopped shop, and process" in reported.message
        assert reported.message.endswith("runs its engine")


def test_admin_a_start_removes_an_operators_stop(tmp_path: Path) -> None:
    orders.stay_stopped(tmp_path)
    reported = acts.start("shop", tmp_path, seconds=0.0)
    assert reported.message.startswith("the engine of shop is allowed to run, but no process runs it")
    assert orders.stopped(tmp_path) is None


def test_admin_a_release_names_the_destination_that_no_host_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = open_lease(tmp_path)
    assert lease.try_acquire()
    monkeypatch.setattr(orders, "requested", lambda _: lease.release())
    reported = acts.release("shop", tmp_path, seconds=0.0)
    assert reported.done
    assert reported.message.endswith("; no other host has taken shop yet")


@pytest.mark.found
def test_admin_an_alarm_reports_a_start_that_fails_with_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1218: an engine that could not be started because of a full disk or wrong permissions caused no alarm."""

    class Engines(operator.Operator):
        def __init__(self) -> None:
            super().__init__([])
            self.reported: list[Alarm] = []

        def report_failed(self, destination: str, error: BaseException) -> None:
            self.reported.append(failed(destination, error))

    def refused(_name: str) -> None:
        raise PermissionError(13, "Permission denied", "/data/engine/shop/meta.json")

    alarms = Engines()
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    for name, value in (("_slots", {}), ("_operator", alarms), ("_make", refused)):
        monkeypatch.setattr(launcher, name, value)
    with pytest.raises(PermissionError):
        launcher.take_up("shop")
    (alarm,) = alarms.reported
    assert (alarm.key, alarm.state) == ("engine", "ERROR")
    assert alarm.text == "PermissionError: [Errno 13] Permission denied: '/data/engine/shop/meta.json'"
