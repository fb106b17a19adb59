"""Tests that ticks find a Delta table that changed between runs, and report the change to the engine without a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.locations import CatalogConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.destination_files.catalog_record import Registered, write_registered
from sluice.cdc_engine.limits import LAKE_WATCH_SECONDS
from sluice.orchestration.sensor import lake_watch
from sluice.orchestration.sensor.lake_watch import LOOK_SECONDS_MAX, LakeWatch
from sluice.spark_jobs.table_owner import Owner, TableRecord
from sluice.spark_jobs.tables.lake_look import LakeLook
from tests.orchestration.fix_location import make_config, write_tables
from tests.orchestration.sensor.test_tick import Shop
from tests.waiting import wait_for


def at_once(act: Callable[[], None]) -> None:
    act()


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Watched:
    """A destination whose Delta tables and records are in the state in which a run leaves them. `left` creates such a table."""

    def __init__(self, root: Path) -> None:
        self.config: SluiceConfig = make_config(root)
        self.directory = self.config.destination_dir("shop")
        write_tables(self.directory)

    def left(self, name: str) -> str:
        path = self.config.table_path("shop", *name.split("."))
        for number in range(2):
            deltalake.write_deltalake(path, pa.table({"id": [number]}), mode="append")
        log = deltalake.DeltaTable(path)
        LakeTables(self.directory).keep({name: (str(log.metadata().id), log.version())})
        return path


@pytest.fixture
def shop(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lake_watch, "time", clock)
    return clock


def test_fault_ticks_alone_report_to_the_engine_that_a_table_was_restored(tmp_path: Path) -> None:
    path = Watched(tmp_path).left("shop.orders")
    deltalake.DeltaTable(path).restore(0)
    with dg.DagsterInstance.ephemeral() as instance:
        shop = Shop(tmp_path, instance)

        def reported() -> tuple[str, ...]:
            shop.tick()
            return shop.engine.lake

        (sentence,) = wait_for("the engine is told", reported)
    assert "TABLE_RESTORED" in sentence


def test_fault_a_look_is_due_every_half_minute(shop: Watched, clock: Clock) -> None:
    watch, path = LakeWatch(shop.config, "shop", at_once), shop.left("shop.orders")
    watch.look([])
    assert watch.troubles() == ()
    deltalake.DeltaTable(path).restore(0)
    watch.look([])
    assert watch.troubles() == ()
    clock.now += LAKE_WATCH_SECONDS
    watch.look([])
    assert "TABLE_RESTORED" in watch.troubles()[0]


def test_fault_one_look_at_a_time(shop: Watched, clock: Clock) -> None:
    begun: list[Callable[[], None]] = []
    watch = LakeWatch(shop.config, "shop", begun.append)
    for _ in range(3):
        watch.look([])
        clock.now += 1000
    assert len(begun) == 1
    begun[0]()
    clock.now += 100_000
    watch.look([])
    assert len(begun) == 2


def test_fault_stopped_tables_and_those_that_are_captured_no_more_say_nothing(shop: Watched, clock: Clock) -> None:
    for name in ("shop.orders", "shop.gone"):
        deltalake.DeltaTable(shop.left(name)).restore(0)
    watch = LakeWatch(shop.config, "shop", at_once)
    watch.look(["shop.orders"])
    assert watch.troubles() == ()
    clock.now += LAKE_WATCH_SECONDS
    watch.look([])
    assert ["shop.orders" in each for each in watch.troubles()] == [True]


def test_fault_a_disk_that_is_not_mounted_is_a_few_sentences(shop: Watched, clock: Clock) -> None:
    (shop.directory / "tables.json").unlink()
    for number in range(9):
        LakeTables(shop.directory).keep({f"shop.t{number}": ("id", 3)})
    watch = LakeWatch(shop.config, "shop", at_once)
    watch.look([])
    assert len(watch.troubles()) == lake_watch.SHOWN_MAX + 1
    assert "4 further tables have problems too: check whether the lake's disk is mounted" in watch.troubles()[-1]


@pytest.mark.found
def test_fault_without_a_catalog_in_conf_no_table_is_reported_as_unregistered(shop: Watched, clock: Clock) -> None:
    """Defect 1187: after `catalog` was removed from conf/ because the catalog refused tables, `status` advised forever to correct the
    cause, and said that the next run registers the tables again.
    """
    write_registered(shop.directory, Registered(failed={("main", "shop", "orders"): "PERMISSION_DENIED"}))
    for catalog, reported in ((CatalogConfig.model_validate({"name": "main"}), 1), (None, 0)):
        watch = LakeWatch(shop.config.model_copy(update={"catalog": catalog}), "shop", at_once)
        watch.look([])
        assert len(watch.troubles()) == reported
        clock.now += LAKE_WATCH_SECONDS


def test_fault_a_file_of_records_that_cannot_be_read_is_reported(shop: Watched, clock: Clock) -> None:
    shop.left("shop.orders")
    record = next((shop.directory / "lake-tables").glob("*.json"))
    record.write_text("{")
    watch = LakeWatch(shop.config, "shop", at_once)
    watch.look([])
    assert f"lake-tables/{record.name} cannot be read" in watch.troubles()[0]


def test_fault_a_look_that_breaks_says_so_and_the_next_one_looks(
    shop: Watched, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = LakeWatch(shop.config, "shop", at_once)
    with monkeypatch.context() as patched:
        patched.setattr(LakeWatch, "_found", lambda *_: 1 / 0)
        watch.look([])
    assert watch.troubles() == (
        "Sluice cannot check whether other programs changed the Delta tables: division by zero; Sluice tries again",
    )
    clock.now += LAKE_WATCH_SECONDS
    watch.look([])
    assert watch.troubles() == ()


def test_fault_an_inspection_that_fails_at_one_table_reports_its_findings_about_the_others(
    shop: Watched, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.directory / "tables.json").unlink()
    for name in ("shop.a_first", "shop.broken", "shop.z_last"):
        deltalake.DeltaTable(shop.left(name)).restore(0)
    looked = LakeLook.trouble

    def breaks(look: LakeLook, owner: Owner, path: str, record: TableRecord) -> str:
        return looked(look, owner, path, record) if owner.table != "shop.broken" else str(1 // 0)

    monkeypatch.setattr(LakeLook, "trouble", breaks)
    watch = LakeWatch(shop.config, "shop", at_once)
    watch.look([])
    first, second, third = sorted(watch.troubles(), key=lambda sentence: "broken" in sentence)
    assert "TABLE_RESTORED" in first
    assert "TABLE_RESTORED" in second
    assert (
        third
        == "the Delta table of shop.broken cannot be watched for changes by other programs: integer division or modulo by zero"
    )


@pytest.mark.found
def test_fault_an_inspection_uses_the_current_secrets_of_the_store(
    shop: Watched, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Defect 1194: the code server read the credentials of the lake's store once. After they had expired or were rotated, `status` showed
    until a restart that the logs of the Delta tables could not be read.
    """
    shop.left("shop.orders")
    token, used = tmp_path / "token", list[str]()

    def opens(look: LakeLook, owner: Owner, path: str, record: TableRecord) -> str:
        used.append(look.storage_options["aws_session_token"])
        return ""

    monkeypatch.setattr(LakeLook, "trouble", opens)
    options = {"aws_session_token": f"$file:{token}"}
    watch = LakeWatch(shop.config.model_copy(update={"storage_options": options}), "shop", at_once)
    for secret in ("first-token", "second-token"):
        token.write_text(secret)
        watch.look([])
        clock.now += LAKE_WATCH_SECONDS
    assert used == ["first-token", "second-token"]


def test_fault_a_slow_lake_is_inspected_less_often(
    shop: Watched, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def slow(*_: object) -> list[str]:
        nonlocal looks
        looks += 1
        clock.now += 60.0
        return []

    monkeypatch.setattr(LakeWatch, "_found", slow)
    watch = LakeWatch(shop.config, "shop", at_once)
    watch.look([])
    clock.now += 600.0
    watch.look([])
    assert looks == 1
    clock.now += 600.0
    watch.look([])
    assert looks == 2


def test_fault_a_look_has_a_thread_of_its_own() -> None:
    done = threading.Event()
    lake_watch.in_a_thread(done.set)
    assert done.wait(10)


def test_fault_a_lake_that_does_not_answer_is_reported_while_it_does_not(shop: Watched, clock: Clock) -> None:
    begun: list[Callable[[], None]] = []
    watch = LakeWatch(shop.config, "shop", begun.append)
    watch.look([])
    assert watch.troubles() == ()
    clock.now += LOOK_SECONDS_MAX + 1
    watch.look([])
    (sentence,) = watch.troubles()
    assert "301 s" in sentence
    begun[0]()
    assert watch.troubles() == ()


@pytest.mark.scale
def test_fault_an_inspection_looks_at_a_bounded_number_of_tables_and_at_those_that_changed() -> None:
    names = [f"shop.t{number:05d}" for number in range(3000)]
    watched = {name: {"": (f"id-{name}", 1)} for name in names}
    assert lake_watch.due_tables(watched, {}) == names, "the first inspection looks at all of them"
    looked, seen = dict(watched), list[str]()
    for _ in range(-(-len(names) // lake_watch.LOOKED_MAX)):
        due = lake_watch.due_tables(watched, looked)
        assert len(due) == lake_watch.LOOKED_MAX
        seen += due
        for name in due:
            looked[name] = looked.pop(name)
    assert sorted(seen) == names, "each of them is looked at in turn"
    watched[names[7]] = {"": ("id", 2)}
    due = lake_watch.due_tables(watched, looked)
    assert due[0] == names[7]
    assert len(due) == 1 + lake_watch.LOOKED_MAX
    del watched[names[8]]
    assert names[8] not in lake_watch.due_tables(watched, looked)


def test_fault_a_table_that_waits_keeps_its_sentence(
    shop: Watched, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_watch, "LOOKED_MAX", 1)
    watch = LakeWatch(shop.config, "shop", at_once)
    paths = [shop.left(name) for name in ("shop.orders", "shop.items")]
    watch.look([])
    for number, path in enumerate(paths, start=1):
        deltalake.DeltaTable(path).restore(0)
        for _ in paths:
            clock.now += LAKE_WATCH_SECONDS
            watch.look([])
        assert len(watch.troubles()) == number
