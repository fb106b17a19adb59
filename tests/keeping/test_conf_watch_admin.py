"""Tests which conf/ is in use while its files change, become invalid, appear and disappear."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import structlog

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.in_use import VARIABLE, change_since, conf_in_use, stamp, troubles_now

GOOD = "source: {host: 192.0.2.1, user: sluice, port: 3306}\n"
OTHER = "source: {host: 192.0.2.1, user: sluice, port: 3307}\n"
WRONG = "source: {host: 192.0.2.1, user: sluice, prot: 3306}\n"


class Conf:
    """A conf/ and its watcher."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "conf"
        self.destinations = self.directory / "destinations"
        self.destinations.mkdir(parents=True)
        self.main(f"data_dir: {root}/data\n")

    def main(self, text: str) -> None:
        (self.directory / "sluice.yaml").write_text(text)

    def put(self, name: str, text: str = GOOD) -> None:
        (self.destinations / f"{name}.yaml").write_text(text)

    def remove(self, name: str) -> None:
        (self.destinations / f"{name}.yaml").unlink()


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conf:
    monkeypatch.setenv(VARIABLE, "")
    made = Conf(tmp_path)
    monkeypatch.setenv("SLUICE_CONF", str(made.directory))
    made.put("shop")
    made.put("crm")
    return made


def changes(watch: ConfWatch) -> bool:
    """Returns whether something new is in use, once the change has settled."""
    first, second, third = watch.look(), watch.look(), watch.look()
    assert not first
    assert not third
    return second


def ports(watch: ConfWatch) -> dict[str, int]:
    in_use = watch.in_use.config
    assert conf_in_use().config == in_use, "processes that are started now work with the same"
    return {name: each.source.port for name, each in sorted(in_use.destinations.items())}


def test_admin_files_come_change_and_go(conf: Conf) -> None:
    watch = ConfWatch(conf.directory, "test")
    assert not changes(watch)
    shop = watch.in_use.files.digest("shop")
    conf.put("web")
    conf.put("crm", OTHER)
    assert changes(watch)
    assert ports(watch) == {"crm": 3307, "shop": 3306, "web": 3306}
    assert watch.in_use.files.digest("shop") == shop, "the others are not touched"
    conf.remove("crm")
    assert changes(watch)
    assert ports(watch) == {"shop": 3306, "web": 3306}
    assert watch.in_use.refused == {}


def test_admin_a_file_that_is_being_written_counts_once_it_stays(conf: Conf) -> None:
    watch = ConfWatch(conf.directory, "test")
    conf.put("shop", "")
    assert not watch.look()
    conf.put("shop", OTHER)
    assert not watch.look()
    assert watch.look()
    assert ports(watch)["shop"] == 3307


def test_admin_a_broken_file_is_reported_and_the_old_text_continues(conf: Conf) -> None:
    watch = ConfWatch(conf.directory, "test")
    before = stamp()
    conf.put("shop", WRONG)
    conf.put("new", "[1, 2]")
    conf.put("crm", OTHER)
    assert changes(watch)
    assert ports(watch) == {"crm": 3307, "shop": 3306}
    assert "source.prot" in watch.in_use.refused["destinations/shop.yaml"]
    assert "the earlier settings of the destination stay in use" in watch.in_use.refused["destinations/shop.yaml"]
    assert "the destination is not started" in watch.in_use.refused["destinations/new.yaml"]
    assert "destinations/shop.yaml" in troubles_now("shop")[0]
    assert troubles_now("crm") == ()
    assert stamp() != before
    with pytest.raises(ConfigurationError):
        load_config()
    conf.put("shop", OTHER)
    conf.remove("new")
    assert changes(watch)
    assert watch.in_use.refused == {}
    assert troubles_now("shop") == ()


def test_admin_a_process_that_starts_with_a_broken_file_uses_the_last_good_one(conf: Conf) -> None:
    ConfWatch(conf.directory, "test")
    conf.put("shop", WRONG)
    again = ConfWatch(conf.directory, "test")
    assert ports(again) == {"crm": 3306, "shop": 3306}
    assert list(again.in_use.refused) == ["destinations/shop.yaml"]
    with pytest.raises(ConfigurationError, match="prot"):
        ConfWatch(conf.directory, "another that never saw it right")


def test_admin_a_newcomer_gives_way_where_two_would_write_one_table(conf: Conf) -> None:
    table = "tables: {shop.orders: {path: /lake/orders}}\n"
    conf.put("shop", GOOD + table)
    watch = ConfWatch(conf.directory, "test")
    conf.put("aaa", GOOD + table)
    assert not changes(watch)
    assert ports(watch) == {"crm": 3306, "shop": 3306}
    assert "same Delta path /lake/orders" in watch.in_use.refused["destinations/aaa.yaml"]


def test_admin_sluice_yaml_takes_effect_with_the_next_up(conf: Conf, tmp_path: Path) -> None:
    watch = ConfWatch(conf.directory, "test")
    for text in (f"data_dir: {tmp_path}/data\nmetrics: {{port: 9}}\n", "data_dir: [1\n"):
        conf.main(text)
        conf.put("shop", OTHER if watch.in_use.config.destinations["shop"].source.port == 3306 else GOOD)
        assert changes(watch)
        assert watch.in_use.config.metrics.port == 0
        assert "`sluice down` and `sluice up` apply the change" in watch.in_use.refused["sluice.yaml"]


def test_admin_a_folder_that_is_away_ends_nothing(conf: Conf) -> None:
    watch = ConfWatch(conf.directory, "test")
    for path, name in ((conf.destinations, "destinations"), (conf.directory, "conf")):
        path.rename(path.with_name(f"{name}.away"))
        assert not changes(watch)
        path.with_name(f"{name}.away").rename(path)
    for each in conf.destinations.iterdir():
        each.unlink()
    assert changes(watch)
    assert ports(watch) == {}


def test_admin_without_a_watcher_conf_itself_is_in_use(conf: Conf) -> None:
    assert os.environ[VARIABLE] == ""
    assert stamp() == ""
    assert set(conf_in_use().config.destinations) == {"shop", "crm"}
    conf.put("shop", WRONG)
    with pytest.raises(ConfigurationError):
        conf_in_use()


def test_admin_a_process_learns_that_the_file_of_its_destination_has_changed(conf: Conf) -> None:
    watch = ConfWatch(conf.directory, "test")
    begun = conf_in_use().files
    conf.put("crm", OTHER)
    assert changes(watch)
    assert change_since(begun, "shop") == ""
    assert "destinations/crm.yaml in conf/ has changed" in change_since(begun, "crm")


def test_admin_a_change_that_cannot_be_written_down_waits_until_it_can(
    conf: Conf, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ConfWatch(conf.directory, "test")
    with monkeypatch.context() as full, structlog.testing.capture_logs() as reported:
        full.setattr("sluice.cdc_engine.keeping.conf_watch.keep", disk_is_full)
        conf.put("shop", OTHER)
        assert not changes(watch)
        assert ports(watch)["shop"] == 3306, "an engine that is started now is not one of another conf/"
        assert [each["event"] for each in reported] == ["conf_in_use_not_written"], "once"
        again = ConfWatch(conf.directory, "test")
        assert ports(again)["shop"] == 3306
    assert watch.look()
    assert ports(watch)["shop"] == 3307


def disk_is_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_admin_without_a_watcher_a_wrong_file_counts_as_the_engines_have_it(
    conf: Conf, monkeypatch: pytest.MonkeyPatch
) -> None:
    ConfWatch(conf.directory, "engine")
    monkeypatch.setenv(VARIABLE, "")  # This is for a code server that Dagster itself started.
    conf.put("shop", WRONG)
    conf.put("crm", OTHER)
    found = conf_in_use()
    assert {name: each.source.port for name, each in found.config.destinations.items()} == {"crm": 3307, "shop": 3306}
    assert list(found.refused) == ["destinations/shop.yaml"]
