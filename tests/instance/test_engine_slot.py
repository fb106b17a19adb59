"""Tests that a process has one engine per destination: starts that take long or fail, a lost lease, and two destinations in one process."""

from __future__ import annotations

import threading
import time

import pytest

from sluice.cdc_engine.errors import EngineStartingError, LeaseLostError, SourceConnectionError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.engine.group_engine import GroupEngine
from sluice.cdc_engine.keeping.launcher import EngineSlot
from tests.waiting import wait_for


class Gated:
    """An engine that starts when the test opens its gate."""

    stops_first = False

    def __init__(self, gate: threading.Event, error: Exception | None = None) -> None:
        self.gate, self.error = gate, error
        self.holds_lease, self.stopped = False, 0

    def start(self) -> None:
        assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        self.holds_lease = True

    def stop(self) -> None:
        self.holds_lease = False
        self.stopped += 1


class Bench:
    """Has a slot, and every engine that the slot created."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.errors: list[Exception] = []
        self.made: list[Gated] = []
        self.slot: EngineSlot[Gated] = EngineSlot("shop", self.make)

    def make(self) -> Gated:
        self.made.append(Gated(self.gate, self.errors.pop(0) if self.errors else None))
        return self.made[-1]

    def get(self) -> Gated:
        return wait_for("the engine has started", self._started, 30)

    def _started(self) -> Gated | None:
        try:
            return self.slot.get(0.05)
        except EngineStartingError:
            return None


def test_a_caller_waits_for_a_start_for_a_moment_only() -> None:
    bench = Bench()
    for _ in range(3):
        with pytest.raises(EngineStartingError, match="the engine of shop is being started"):
            bench.slot.get(0.01)
    bench.gate.set()
    assert bench.get() is bench.get() is bench.made[0]
    assert len(bench.made) == 1


def test_what_a_start_raised_is_reported_once_and_the_next_call_begins_another() -> None:
    bench = Bench()
    bench.gate.set()
    bench.errors += [SourceConnectionError("refused"), LeaseLostError("process 7 has it")]
    for error in (SourceConnectionError, LeaseLostError):
        with pytest.raises(error):
            bench.slot.get(30)
    assert bench.slot.get(30) is bench.made[2]


def test_an_engine_that_lost_its_lease_is_stopped_and_another_waits_for_it() -> None:
    bench = Bench()
    bench.gate.set()
    first = bench.get()
    first.holds_lease = False
    bench.errors += [LeaseLostError("process 7 has it")] * 2
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            bench.slot.get(30)
    second = bench.slot.get(30)
    assert second is not first
    assert first.stopped == 1


def test_a_slow_source_delays_no_other_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.cdc_engine.keeping import launcher  # noqa: PLC0415

    gate = threading.Event()
    open_gate = threading.Event()
    open_gate.set()
    made = {"slow": Gated(gate), "quick": Gated(open_gate)}
    monkeypatch.setattr(launcher, "_make", made.__getitem__)
    monkeypatch.setattr(launcher, "_slots", {})
    monkeypatch.setattr(launcher, "START_WAIT_SECONDS", 5.0)
    slow = threading.Thread(target=lambda: launcher.get_or_start("slow"))
    slow.start()
    wait_for("the slow one is being started", lambda: "slow" in launcher._slots)
    began = time.monotonic()
    quick: object = launcher.get_or_start("quick")
    assert quick is made["quick"]
    assert time.monotonic() - began < 5.0
    assert not made["slow"].holds_lease
    gate.set()
    slow.join(30)
    launcher.stop_all()
    assert [each.stopped for each in made.values()] == [1, 1]


def test_groups_stop_before_the_engines_that_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.cdc_engine.keeping import launcher  # noqa: PLC0415

    open_gate, stopped = threading.Event(), list[str]()
    open_gate.set()

    class Recorded(Gated):
        def __init__(self, name: str) -> None:
            super().__init__(open_gate)
            self.name, self.stops_first = name, (GroupEngine if name == "all" else Engine).stops_first

        def stop(self) -> None:
            stopped.append(self.name)

        def stage_first(self, seconds: float) -> None: ...

    monkeypatch.setattr(launcher, "_make", Recorded)
    monkeypatch.setattr(launcher, "_slots", {})
    for name in ("east", "all", "west"):
        launcher.take_up(name)
    launcher.stop_all()
    assert stopped[0] == "all"
    assert sorted(stopped) == ["all", "east", "west"]


def test_stopping_waits_for_an_engine_that_is_being_started() -> None:
    bench = Bench()
    with pytest.raises(EngineStartingError):
        bench.slot.get(0.01)
    threading.Timer(0.1, bench.gate.set).start()
    bench.slot.stop()
    assert bench.made[0].stopped == 1


def test_an_engine_that_started_after_its_host_was_closed_is_stopped_admin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.cdc_engine.keeping.launcher.CONNECT_TIMEOUT_SECONDS", 0.01)
    bench = Bench()
    with pytest.raises(EngineStartingError):
        bench.slot.get(0.01)
    bench.slot.stop()
    bench.gate.set()
    wait_for("it is stopped", lambda: bench.made[0].stopped == 1, 30)
    assert not bench.made[0].holds_lease
