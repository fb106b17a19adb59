"""Tests that engines follow conf/ and operators' requests, each independently, and that nothing of a destination is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.config.conf_files import read_conf_files
from sluice.cdc_engine.errors import EngineStartingError, EngineStoppedError, LeaseLostError, SourceConnectionError
from sluice.cdc_engine.keeping import orders
from sluice.cdc_engine.keeping.in_use import VARIABLE, choose
from sluice.cdc_engine.keeping.keeper import RETRY_SECONDS, STANDBY_SECONDS, Keeper, what_stays
from tests.keeping.test_conf_watch_admin import GOOD, OTHER, Conf
from tests.waiting import wait_for


class FakeEngines:
    """Implements `keeper.Engines`, and records each act in `acts`. `digests` has the digest of each destination's file, which a started
    engine gets. An act on a destination in `gates` waits for its event.
    """

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        self.acts: list[tuple[str, str]] = []
        self.digests: dict[str, str] = {}
        self.gates: dict[str, threading.Event] = {}
        self.failing: set[str] = set()
        self.left: set[str] = set()
        self.over: set[str] = set()

    def kept(self) -> dict[str, str]:
        return dict(self.running)

    def ended(self, destination: str) -> bool:
        return destination in self.over

    def take_up(self, destination: str) -> None:
        self._act("start", destination)
        self.over.discard(destination)
        if destination in self.failing:
            self.running.pop(destination, None)
            raise SourceConnectionError("it does not answer")
        if destination in self.left:
            self.running.pop(destination, None)
            raise LeaseLostError("another process may have it")
        self.running[destination] = self.digests[destination]

    def put_away(self, destination: str) -> None:
        self._act("stop", destination)
        self.running.pop(destination, None)

    def give_up(self, destination: str) -> None:
        self._act("release", destination)
        self.running.pop(destination, None)
        self.left.add(destination)

    def _act(self, act: str, destination: str) -> None:
        self.acts.append((act, destination))
        if gate := self.gates.get(destination):
            assert gate.wait(30)


class Installation:
    """A conf/, its engines, and their keeper."""

    def __init__(self, root: Path) -> None:
        self.conf = Conf(root)
        self.engines = FakeEngines()
        self.held: set[Path] = set()
        self.now = 1000.0
        self.keeper = self.new_keeper()

    def new_keeper(self) -> Keeper:
        return Keeper(self.engines, self.held.__contains__, lambda: self.now)

    def look(self, *, wait: bool = True) -> list[tuple[str, str]]:
        """Lets the keeper compare the engines with conf/ once, and returns what the keeper did to the engines."""
        before = len(self.engines.acts)
        in_use = choose(read_conf_files(self.conf.directory), None, main_may_change=True)
        self.engines.digests = {name: in_use.files.digest(name) for name in in_use.config.destinations}
        self.keeper.look(in_use)
        if wait:
            self.keeper.wait(30)
        return sorted(self.engines.acts[before:])

    def directory(self, name: str) -> Path:
        return choose(read_conf_files(self.conf.directory), None, main_may_change=True).config.destination_dir(name)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    monkeypatch.setenv(VARIABLE, "")
    made = Installation(tmp_path)
    made.conf.put("shop")
    made.conf.put("crm")
    assert made.look() == [("start", "crm"), ("start", "shop")]
    yield made
    for gate in made.engines.gates.values():
        gate.set()
    made.keeper.wait(30)


def test_admin_files_that_come_change_and_go_touch_their_own_engine_alone(installation: Installation) -> None:
    assert installation.look() == []
    installation.conf.put("web")
    assert installation.look() == [("start", "web")]
    installation.conf.put("web", OTHER)
    assert installation.look() == [("start", "web"), ("stop", "web")]
    installation.conf.remove("web")
    assert installation.look() == [("stop", "web")]
    installation.conf.put("web")
    assert installation.look() == [("start", "web")]
    assert installation.look() == []


def test_failover_admin_an_engine_that_gave_way_to_another_source_is_followed_by_one_without_a_tick(
    installation: Installation,
) -> None:
    installation.engines.over = {"shop"}
    assert installation.look() == [("start", "shop")]
    assert installation.look() == []


@pytest.mark.found
def test_admin_one_that_cannot_start_is_tried_again_after_a_pause_and_when_its_file_changes(
    installation: Installation,
) -> None:
    """Defect 18: only Dagster's ticks started an engine again, so a host without Dagster's daemon had no engine."""
    installation.engines.failing = {"web"}
    installation.conf.put("web")
    assert installation.look() == [("start", "web")]
    for _ in range(2):
        installation.now += RETRY_SECONDS - 0.5
        assert installation.look() == []
        installation.now += 0.5
        assert installation.look() == [("start", "web")]
    installation.conf.put("web", OTHER)
    assert installation.look() == [("start", "web")]
    installation.engines.failing = set()
    installation.now += RETRY_SECONDS
    assert installation.look() == [("start", "web")]
    installation.now += RETRY_SECONDS
    assert installation.look() == [], "it runs"


@pytest.mark.found
def test_admin_ha_a_process_that_stands_by_takes_over_without_a_tick(installation: Installation) -> None:
    """Defect 18: a standby took over only at a tick of Dagster's sensor. Without such a tick, clients had no server."""
    installation.engines.left = {"shop"}
    installation.engines.over = {"shop"}
    installation.held.add(installation.directory("shop"))
    assert installation.look() == [("start", "shop")], "its lease is lost: another engine waits for it"
    for _ in range(3):
        installation.now += STANDBY_SECONDS
        assert installation.look() == [], "another process has it, and its lease alone is looked at"
    installation.held.clear()
    installation.engines.left = set()
    assert installation.look() == [], "it is looked at once a second"
    installation.now += STANDBY_SECONDS
    assert installation.look() == [("start", "shop")]
    assert "shop" in installation.engines.running


@pytest.mark.found
def test_admin_ha_an_engine_that_was_released_is_taken_back_once_the_others_had_their_chance(
    installation: Installation,
) -> None:
    """Test for defect 18: if no other process takes the engine and no tick comes, the process that released the engine takes it back."""
    orders.request(installation.directory("shop"), "release")
    assert installation.look() == [("release", "shop")]
    installation.now += STANDBY_SECONDS
    assert installation.look() == [("start", "shop")], "it is refused"
    assert "shop" not in installation.engines.running
    installation.engines.left = set()
    installation.now += STANDBY_SECONDS
    assert installation.look() == [("start", "shop")]
    assert "shop" in installation.engines.running


def test_admin_an_engine_that_is_slow_to_end_delays_no_other(installation: Installation) -> None:
    installation.engines.gates["shop"] = threading.Event()
    installation.conf.remove("shop")
    installation.look(wait=False)
    wait_for("it is being stopped", lambda: ("stop", "shop") in installation.engines.acts)
    installation.conf.put("shop")
    installation.conf.put("web")
    installation.look(wait=False)
    wait_for("the other has started", lambda: "web" in installation.engines.running)
    assert installation.engines.acts.count(("stop", "shop")) == 1
    installation.engines.gates.pop("shop").set()
    installation.keeper.wait(30)
    assert installation.look() == [("start", "shop")]


def test_admin_a_stop_lasts_over_restarts_until_an_operator_starts_the_engine(installation: Installation) -> None:
    directory = installation.directory("shop")
    orders.stay_stopped(directory)
    assert installation.look() == [("stop", "shop")]
    installation.conf.put("shop", OTHER)
    assert installation.look() == []
    installation.keeper = installation.new_keeper()
    assert installation.look() == [], "of another process"
    assert orders.may_run(directory)
    assert not orders.may_run(directory)
    assert installation.look() == [("start", "shop")]


def test_admin_a_restart_and_a_release_are_done_once(installation: Installation) -> None:
    directory = installation.directory("shop")
    orders.request(directory, "restart")
    assert installation.look() == [("start", "shop"), ("stop", "shop")]
    orders.request(directory, "release")
    assert installation.look() == [("release", "shop")]
    assert installation.look() == [], "others have their chance"


def test_admin_ha_a_request_is_executed_by_the_process_that_has_the_destination(installation: Installation) -> None:
    directory = installation.directory("shop")
    installation.engines.running.pop("shop")
    installation.held.add(directory)
    for request in ("restart", "release"):
        orders.request(directory, request)
        assert installation.look() == []
        assert orders.requested(directory) is not None, "it is there for the other"
    assert orders.requested(directory, now=1e12) is None, "nobody does what was asked long ago"


def test_admin_a_destination_whose_file_goes_keeps_its_ledger_and_says_so(tmp_path: Path) -> None:
    assert "nothing acked yet" in what_stays(tmp_path)
    assert str(tmp_path) in what_stays(tmp_path)
    (tmp_path / "meta.json").write_text("{")
    assert "the ledger in that folder cannot be read" in what_stays(tmp_path)


def test_admin_a_note_that_is_damaged_still_stops(tmp_path: Path) -> None:
    (tmp_path / "stopped.json").write_text("")
    assert orders.stopped(tmp_path) is not None


def test_admin_the_launcher_starts_none_that_was_stopped_and_leaves_one_that_was_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.cdc_engine.keeping import launcher  # noqa: PLC0415

    conf = Conf(tmp_path)
    conf.put("shop", GOOD)
    monkeypatch.setenv("SLUICE_CONF", str(conf.directory))
    monkeypatch.setenv(VARIABLE, "")
    for name in ("_slots", "_made", "_left"):
        monkeypatch.setattr(launcher, name, {})
    directory = choose(read_conf_files(conf.directory), None, main_may_change=True).config.destination_dir("shop")
    order = orders.stay_stopped(directory, "ada@host")

    def refusal() -> Exception | None:
        try:
            launcher.get_or_start("shop")
        except EngineStartingError:
            return None
        except (EngineStoppedError, LeaseLostError) as error:
            return error
        return None

    said = str(wait_for("it is refused", refusal))
    assert said == f"shop was stopped by ada@host at {order.when()}; `sluice instance start shop` starts it"
    assert launcher.kept() == {}
    launcher.give_up("shop")
    assert "so that another host takes" in str(refusal())
    with pytest.raises(LeaseLostError, match="so that another host takes"):
        launcher.take_up("shop")
    launcher.put_away("shop")
    with pytest.raises(EngineStoppedError):
        launcher.take_up("shop")
