"""Tests a code server that loads another conf/ without ending: its definitions, its id, and the runs that are forked meanwhile."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.utils import FuturesAwareThreadPoolExecutor
from dagster._grpc.server import DagsterApiServer

from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.in_use import VARIABLE, troubles_now
from sluice.orchestration import reload, upkeep
from sluice.orchestration.base import server_state
from sluice.orchestration.upkeep import TABLES_SECONDS, ShownDefinitions
from tests.keeping.test_conf_watch_admin import WRONG, Conf, changes
from tests.orchestration.fix_location import write_tables


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conf:
    made = Conf(tmp_path)
    made.put("shop")
    monkeypatch.setenv("SLUICE_CONF", str(made.directory))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delitem(sys.modules, reload.DEFINITIONS, raising=False)
    return made


@pytest.fixture
def server(conf: Conf, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    assert conf.directory.exists()
    monkeypatch.setattr(reload, "_servers", [])
    monkeypatch.setattr(server_state, "_server", server_state._Server())
    monkeypatch.setattr(DagsterApiServer, "reload_repositories", reload.reload_repositories, raising=False)
    monkeypatch.setattr(DagsterApiServer, "show", reload.show, raising=False)
    ended = threading.Event()
    with FuturesAwareThreadPoolExecutor(1) as pool:
        made: Any = DagsterApiServer.__new__(DagsterApiServer)
        origin = LoadableTargetOrigin(module_name=reload.DEFINITIONS)
        reload.begin(made, lambda: made.__init__(ended, logging.getLogger("test"), pool, origin))
        yield made
        ended.set()
        made._shutdown_once_executions_finish_event.set()


def sensors(server: Any) -> set[str]:
    (repository,) = server._loaded_repositories.definitions_by_name.values()
    return {each.name for each in repository.sensor_defs if each.name.endswith("_engine")}


def assets(server: Any) -> set[str]:
    (repository,) = server._loaded_repositories.definitions_by_name.values()
    return {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}


def test_admin_a_new_destination_gets_its_sensor_and_a_removed_one_loses_it(conf: Conf, server: Any) -> None:
    watch = ConfWatch(conf.directory, "test")
    shown, names = ShownDefinitions(watch.in_use), [server._server_id]
    assert sensors(server) == {"shop_engine"}
    conf.put("web")
    assert changes(watch)
    shown.look(watch.in_use)
    assert sensors(server) == {"shop_engine", "web_engine"}
    names.append(server._server_id)
    shown.look(watch.in_use)
    assert server._server_id == names[-1], "nothing has changed"
    conf.remove("shop")
    assert changes(watch)
    shown.look(watch.in_use)
    assert sensors(server) == {"web_engine"}
    assert server._server_id not in names, "webserver and daemon read anew what has another id"


def test_admin_tables_that_become_known_get_their_assets(conf: Conf, server: Any) -> None:
    watch = ConfWatch(conf.directory, "test")
    shown = ShownDefinitions(watch.in_use)
    write_tables(watch.in_use.config.destination_dir("shop"))
    assert "shop/orders" not in assets(server)
    shown.look(watch.in_use)
    assert "shop/orders" in assets(server)


def test_admin_a_list_that_changes_right_after_its_copy_is_copied_again(
    conf: Conf, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, now, reloads = ConfWatch(conf.directory, "test"), [0.0], list[float]()
    shop = watch.in_use.config.destination_dir("shop")
    write_tables(shop, ("shop.orders",))

    @contextlib.contextmanager
    def copied() -> Iterator[None]:
        yield
        write_tables(shop, ("shop.orders", "shop.items"))

    monkeypatch.setattr(upkeep, "current_tables", copied)
    shown = upkeep.first_definitions(watch.in_use, lambda: reloads.append(now[0]), lambda: now[0])
    for now[0] in (1.0, TABLES_SECONDS, 2 * TABLES_SECONDS):
        shown.look(watch.in_use)
    assert reloads == [TABLES_SECONDS]


@pytest.mark.found
def test_admin_tables_that_are_included_or_created_later_get_their_assets(conf: Conf, server: Any) -> None:
    """Defect 27: tables that were included later had no asset until the code server was restarted."""
    watch, now = ConfWatch(conf.directory, "test"), [0.0]
    shop = watch.in_use.config.destination_dir("shop")
    shown = ShownDefinitions(watch.in_use, clock=lambda: now[0])
    write_tables(shop, ("shop.orders",))
    shown.look(watch.in_use)
    assert delta_assets(assets(server)) == {"shop/orders"}
    write_tables(shop, ("shop.orders", "shop.items"))
    shown.look(watch.in_use)
    assert delta_assets(assets(server)) == {"shop/orders"}, "many new tables are few reloads"
    now[0] += TABLES_SECONDS
    shown.look(watch.in_use)
    assert delta_assets(assets(server)) == in_a_run() == {"shop/orders", "shop/items"}
    (shop / "tables.json").unlink()
    name, now[0] = server._server_id, now[0] + TABLES_SECONDS
    shown.look(watch.in_use)
    assert server._server_id == name, "an engine that starts over has not lost its tables"


def test_admin_a_reload_waits_for_the_first_load(conf: Conf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new table may cause a reload while the server still imports the definitions module. If the reload removed the module then, the
    import would fail.
    """
    monkeypatch.setattr(reload, "_servers", [])
    write_tables(ConfWatch(conf.directory, "test").in_use.config.destination_dir("shop"))
    reloader, shown = threading.Thread(target=reload.reload_definitions), list[str]()
    server = SimpleNamespace(reload_repositories=lambda: "of now", show=shown.append)

    def load() -> None:
        importlib.import_module(reload.DEFINITIONS)
        reloader.start()
        reloader.join(0.2)
        assert reloader.is_alive()
        assert reload.DEFINITIONS in sys.modules

    reload.begin(server, load)
    reloader.join()
    assert shown == ["of now"], "it comes after, and finds the server"


def test_admin_definitions_that_cannot_be_built_leave_those_that_are_there(conf: Conf, server: Any) -> None:
    watch = ConfWatch(conf.directory, "test")
    shown, before = ShownDefinitions(watch.in_use), (server._server_id, sys.modules[reload.DEFINITIONS])
    tables = watch.in_use.config.destination_dir("shop") / "tables.json"
    tables.parent.mkdir(parents=True)
    tables.write_text("{")
    with pytest.raises(Exception, match="cannot be read"):
        reload.reload_definitions()
    conf.put("web")
    assert changes(watch)
    shown.look(watch.in_use)
    assert (server._server_id, sys.modules[reload.DEFINITIONS]) == before
    assert sensors(server) == {"shop_engine"}


def test_admin_a_broken_file_is_in_the_message_of_its_sensor_and_nothing_is_reloaded(conf: Conf, server: Any) -> None:
    watch = ConfWatch(conf.directory, "test")
    shown, name = ShownDefinitions(watch.in_use), server._server_id
    conf.put("shop", WRONG)
    assert not changes(watch)
    shown.look(watch.in_use)
    assert server._server_id == name
    assert "source.prot" in troubles_now("shop")[0]


def test_admin_a_run_that_is_forked_after_a_change_forgets_the_old_definitions(conf: Conf, server: Any) -> None:
    assert sensors(server) == {"shop_engine"}
    watch = ConfWatch(conf.directory, "test")
    reload.reload_definitions()
    reload.forget_outdated()
    assert reload.DEFINITIONS in sys.modules, "they are those of now"
    conf.put("web")
    assert changes(watch)
    reload.forget_outdated()
    assert reload.DEFINITIONS not in sys.modules


def test_admin_runs_have_the_tables_of_the_code_server_whatever_comes_or_goes(conf: Conf, server: Any) -> None:
    watch = ConfWatch(conf.directory, "test")
    shop = watch.in_use.config.destination_dir("shop")
    write_tables(shop, ("shop.orders",))
    reload.reload_definitions()
    before = sys.modules[reload.DEFINITIONS]
    write_tables(shop, ("shop.orders", "shop.items"))
    assert in_a_run() == {"shop/orders"}, "as long as the code server shows no other"
    reload.reload_definitions()
    sys.modules[reload.DEFINITIONS] = before  # This is the module of the process from which runs are forked.
    assert in_a_run() == delta_assets(assets(server)) == {"shop/orders", "shop/items"}

    write_tables(shop, ("shop.orders",))
    conf.put("web")
    assert changes(watch)
    assert in_a_run() == {"shop/orders", "shop/items"}, "another conf/ is no reason to lack what is asked for"
    reload.reload_definitions()
    sys.modules[reload.DEFINITIONS] = before
    assert in_a_run() == delta_assets(assets(server)) == {"shop/orders"}


def test_admin_definitions_that_cannot_be_built_leave_runs_the_tables_that_they_had(conf: Conf, server: Any) -> None:
    watch = ConfWatch(conf.directory, "test")
    shop = watch.in_use.config.destination_dir("shop")
    write_tables(shop, ("shop.orders",))
    reload.reload_definitions()
    (shop / "tables.json").write_text("{")
    with pytest.raises(Exception, match="cannot be read"):
        reload.reload_definitions()
    conf.put("web")
    assert changes(watch)
    assert in_a_run() == delta_assets(assets(server)) == {"shop/orders"}


def test_admin_definitions_that_could_not_be_built_are_built_later(conf: Conf) -> None:
    watch, now = ConfWatch(conf.directory, "test"), [0.0]
    tries: list[float] = []

    def build() -> None:
        tries.append(now[0])
        if now[0] < 15:
            raise OSError("no space left")

    shown = ShownDefinitions(watch.in_use, build, lambda: now[0])
    conf.put("web")
    assert changes(watch)
    with structlog.testing.capture_logs() as reported:
        for now[0] in (0.0, 1.0, 11.0, 12.0, 22.0, 40.0):
            shown.look(watch.in_use)
    assert tries == [0.0, 11.0, 22.0]
    assert [each["event"] for each in reported] == ["definitions_not_reloaded", "definitions_reloaded"], "once each"


def delta_assets(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("shop/") and name != "shop/engine"}


def in_a_run() -> set[str]:
    """Returns the tables of the definitions in a process that is forked now."""
    reload.forget_outdated()
    module = importlib.import_module(reload.DEFINITIONS)
    return delta_assets({key.to_user_string() for key in module.defs.resolve_all_asset_keys()})


def test_definitions_stay_until_they_are_reloaded_or_the_server_ends(
    conf: Conf, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert conf.directory.exists()
    ended = threading.Event()
    monkeypatch.setattr(server_state, "_ends", [ended.is_set])
    stay = server_state.definitions_stay()
    assert stay()
    reload.reload_definitions()
    assert not stay()
    stay = server_state.definitions_stay()
    assert stay()
    ended.set()
    assert not stay()
    ended.clear()
    server_state.definitions_loaded(own=False)
    assert not server_state.definitions_stay()(), "a user's definitions"
    assert server is not None


def test_a_process_without_a_code_server_has_no_definitions_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_state, "_server", server_state._Server())
    assert not server_state.definitions_stay()()
