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
    """Implements `keeper.Engines`. `digest_of`: of the file that an engine is made with now; `gates`: acts on these wait."""

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


class House:
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
        """Looks once, and returns what the look has done."""
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
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setenv(VARIABLE, "")
    made = House(tmp_path)
    made.conf.put("shop")
    made.conf.put("crm")
    assert made.look() == [("start", "crm"), ("start", "shop")]
    yield made
    for gate in made.engines.gates.values():
        gate.set()
    made.keeper.wait(30)


def test_admin_files_that_come_change_and_go_touch_their_own_engine_alone(house: House) -> None:
    assert house.look() == []
    house.conf.put("web")
    assert house.look() == [("start", "web")]
    house.conf.put("web", OTHER)
    assert house.look() == [("start", "web"), ("stop", "web")]
    house.conf.remove("web")
    assert house.look() == [("stop", "web")]
    house.conf.put("web")
    assert house.look() == [("start", "web")]
    assert house.look() == []


def test_failover_admin_an_engine_that_gave_way_to_another_source_is_followed_by_one_without_a_tick(
    house: House,
) -> None:
    house.engines.over = {"shop"}
    assert house.look() == [("start", "shop")]
    assert house.look() == []


@pytest.mark.found
def test_admin_one_that_cannot_start_is_tried_again_after_a_pause_and_when_its_file_changes(house: House) -> None:
    """Defect 18: only Dagster's ticks started an engine again, so a host without Dagster's daemon had no engine."""
    house.engines.failing = {"web"}
    house.conf.put("web")
    assert house.look() == [("start", "web")]
    for _ in range(2):
        house.now += RETRY_SECONDS - 0.5
        assert house.look() == []
        house.now += 0.5
        assert house.look() == [("start", "web")]
    house.conf.put("web", OTHER)
    assert house.look() == [("start", "web")]
    house.engines.failing = set()
    house.now += RETRY_SECONDS
    assert house.look() == [("start", "web")]
    house.now += RETRY_SECONDS
    assert house.look() == [], "it runs"


@pytest.mark.found
def test_admin_ha_a_process_that_stands_by_takes_over_without_a_tick(house: House) -> None:
    """Defect 18: a standby took over only at a tick of Dagster's sensor, so clients had no server until somebody restarted it."""
    house.engines.left = {"shop"}
    house.engines.over = {"shop"}
    house.held.add(house.directory("shop"))
    assert house.look() == [("start", "shop")], "its lease is lost: another engine waits for it"
    for _ in range(3):
        house.now += STANDBY_SECONDS
        assert house.look() == [], "another process has it, and its lease alone is looked at"
    house.held.clear()
    house.engines.left = set()
    assert house.look() == [], "it is looked at once a second"
    house.now += STANDBY_SECONDS
    assert house.look() == [("start", "shop")]
    assert "shop" in house.engines.running


@pytest.mark.found
def test_admin_ha_an_engine_that_was_released_is_taken_back_once_the_others_had_their_chance(house: House) -> None:
    """Test for defect 18: if no other process takes the engine and no tick comes, the process that released the engine takes it back."""
    orders.ask(house.directory("shop"), "release")
    assert house.look() == [("release", "shop")]
    house.now += STANDBY_SECONDS
    assert house.look() == [("start", "shop")], "it is refused"
    assert "shop" not in house.engines.running
    house.engines.left = set()
    house.now += STANDBY_SECONDS
    assert house.look() == [("start", "shop")]
    assert "shop" in house.engines.running


def test_admin_an_engine_that_is_slow_to_end_holds_up_no_other(house: House) -> None:
    house.engines.gates["shop"] = threading.Event()
    house.conf.remove("shop")
    house.look(wait=False)
    wait_for("it is being stopped", lambda: ("stop", "shop") in house.engines.acts)
    house.conf.put("shop")
    house.conf.put("web")
    house.look(wait=False)
    wait_for("the other has started", lambda: "web" in house.engines.running)
    assert house.engines.acts.count(("stop", "shop")) == 1
    house.engines.gates.pop("shop").set()
    house.keeper.wait(30)
    assert house.look() == [("start", "shop")]


def test_admin_a_stop_lasts_over_restarts_until_somebody_starts_it(house: House) -> None:
    directory = house.directory("shop")
    orders.stay_stopped(directory)
    assert house.look() == [("stop", "shop")]
    house.conf.put("shop", OTHER)
    assert house.look() == []
    house.keeper = house.new_keeper()
    assert house.look() == [], "of another process"
    assert orders.may_run(directory)
    assert not orders.may_run(directory)
    assert house.look() == [("start", "shop")]


def test_admin_a_restart_and_a_release_are_done_once(house: House) -> None:
    directory = house.directory("shop")
    orders.ask(directory, "restart")
    assert house.look() == [("start", "shop"), ("stop", "shop")]
    orders.ask(directory, "release")
    assert house.look() == [("release", "shop")]
    assert house.look() == [], "others have their chance"


def test_admin_ha_what_is_asked_is_done_by_the_process_that_has_the_destination(house: House) -> None:
    directory = house.directory("shop")
    house.engines.running.pop("shop")
    house.held.add(directory)
    for wish in ("restart", "release"):
        orders.ask(directory, wish)
        assert house.look() == []
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
    assert "is left to other hosts" in str(refusal())
    with pytest.raises(LeaseLostError, match="is left to other hosts"):
        launcher.take_up("shop")
    launcher.put_away("shop")
    with pytest.raises(EngineStoppedError):
        launcher.take_up("shop")
