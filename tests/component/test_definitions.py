"""Tests `build_definitions`, its translations, and what a tick does when no engine answers, without servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml

import sluice
from sluice.cdc_engine.config.reading import config_of
from sluice.cdc_engine.errors import ConfigurationError, EngineStartingError, LeaseLostError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.keeping.in_use import VARIABLE, conf_in_use
from sluice.orchestration.base.ports import EngineAwayError, Ports
from sluice.orchestration.base.table_catalog import delta_key, source_key
from sluice.orchestration.base.translation import TranslatedTable, Translations, use_translations
from sluice.orchestration.code_location import _with_own_keys
from sluice.orchestration.component import engine_process, location
from sluice.orchestration.component.conf_texts import folder_texts, inline_texts, write_conf
from sluice.orchestration.component.engine_process import (
    LOCK_FILE,
    SILENCE_SECONDS_MAX,
    EngineProcess,
    StartingHost,
    is_wanted,
)
from sluice.orchestration.component.location import build_definitions, location_definitions
from sluice.orchestration.component.sluice_component import SluiceComponent
from sluice.orchestration.retention.jobs import JOB as PRUNE_JOB
from tests.orchestration.fix_location import write_tables
from tests.style.sources import ROOT

pytestmark = pytest.mark.component

TABLES = ("shop.orders", "shop.items")


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clears what the process remembers of its code location."""
    monkeypatch.setattr(location, "_here", location._Process())
    monkeypatch.setenv(VARIABLE, "")
    yield
    use_translations(Translations())


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    made = tmp_path / "conf"
    (made / "destinations").mkdir(parents=True)
    (made / "sluice.yaml").write_text("engine: {kind: remote}\n")
    (made / "destinations" / "shop.yaml").write_text("source: {user: sluice, port: 1}\n")
    write_tables(tmp_path / "data" / "engine" / "shop", TABLES)
    return made


def raw(spec: dg.AssetSpec, table: TranslatedTable) -> dg.AssetSpec:
    return spec.replace_attributes(
        key=dg.AssetKey(["raw", table.table]), group_name="raw", owners=["team:data"], tags={"of": table.name}
    )


def keys(definitions: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def test_importing_sluice_imports_no_dagster() -> None:
    program = (
        "import sys, sluice; assert 'dagster' not in sys.modules, 'heavy'; assert 'SluiceComponent' in dir(sluice)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = sluice.no_such_name


def test_definitions_are_merged_with_those_of_the_user(conf: Path) -> None:
    @dg.asset(deps=[dg.AssetKey(["raw", "orders"])])
    def report() -> None: ...

    ours = build_definitions(conf, translation=raw)
    both = dg.Definitions.merge(ours, dg.Definitions(assets=[report], executor=dg.multiprocess_executor))
    assert {"raw/orders", "raw/items", "report", "shop/engine", "Source/shop/orders"} <= keys(both)
    orders = both.resolve_asset_graph().get(dg.AssetKey(["raw", "orders"]))
    assert (orders.group_name, orders.owners, orders.tags["of"]) == ("raw", ["team:data"], "shop.orders")


def test_the_python_of_the_guide_runs(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(conf.parent)
    page = (ROOT / "docs/guides/your-own-dagster.md").read_text()
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(text, "guide", "exec"), names)  # noqa: S102  what the page tells people to write
    assert {"raw/orders", "order_report"} <= keys(names["defs"])
    at_module_scope = [name for name, each in names.items() if isinstance(each, dg.Definitions)]
    assert at_module_scope == ["defs"], "Dagster refuses a module with two"


def test_the_settings_of_the_guide_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/guides/your-own-dagster.md").read_text()
    first, second = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    for record in (first, second):
        SluiceComponent.model().model_validate(record["attributes"])
    attributes = first["attributes"]
    assert config_of(inline_texts(tmp_path, attributes["settings"], attributes["destinations"])).destinations


def test_events_have_the_translated_keys_also_of_a_table_that_is_new(conf: Path) -> None:
    build_definitions(conf, translation=raw)
    assert delta_key("shop", "shop.orders") == dg.AssetKey(["raw", "orders"])
    assert delta_key("shop", "shop.later") == dg.AssetKey(["raw", "later"])
    assert source_key("shop", "shop.orders") == dg.AssetKey(["Source", "shop", "orders"])


def test_a_source_has_its_own_translation(conf: Path) -> None:
    def mysql(spec: dg.AssetSpec, table: TranslatedTable) -> dg.AssetSpec:
        return spec.replace_attributes(key=dg.AssetKey(["mysql", *spec.key.path[1:]]), group_name=table.database)

    graph = build_definitions(conf, source_translation=mysql).resolve_asset_graph()
    assert graph.get(dg.AssetKey(["shop", "orders"])).parent_keys == {dg.AssetKey(["mysql", "shop", "orders"])}


def by_group(spec: dg.AssetSpec, _: TranslatedTable) -> dg.AssetSpec:
    return spec.replace_attributes(key=spec.key.with_prefix(spec.group_name or "none"))


def failing(_: dg.AssetSpec, table: TranslatedTable) -> dg.AssetSpec:
    raise LookupError(f"nothing for {table.table}")


def depending(spec: dg.AssetSpec, _: TranslatedTable) -> dg.AssetSpec:
    return spec.replace_attributes(deps=["other"])


@pytest.mark.parametrize(
    ("translation", "sentence"),
    [
        (
            by_group,
            "shop/shop/items from all attributes of the asset, and the key none/shop/items from its default key alone",
        ),
        (failing, "of shop.items of shop fails for the asset in the lake: LookupError: nothing for items"),
        (depending, "adds dependencies"),
    ],
)
def test_a_translation_that_cannot_be_used_is_named(conf: Path, translation: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        build_definitions(conf, translation=translation)


def test_the_engines_need_a_process_of_their_own(conf: Path) -> None:
    (conf / "sluice.yaml").write_text("")
    with pytest.raises(ConfigurationError, match=r"set engine: \{kind: remote\}"):
        build_definitions(conf)


def test_a_code_location_has_one_installation(conf: Path, tmp_path: Path) -> None:
    build_definitions(conf)
    build_definitions(conf)  # This is a reload.
    with pytest.raises(ConfigurationError, match=r"has Sluice's settings in .* already"):
        location_definitions(
            inline_texts(tmp_path / "other", {}, {"b": {"source": {"user": "u"}}}), Translations(), starts_engine=False
        )


def test_a_run_has_the_tables_of_its_code_server(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_definitions(conf)
    written = os.environ[VARIABLE]
    assert conf_in_use().config.destinations.keys() == {"shop"}
    write_tables(tmp_path / "data" / "engine" / "shop", (*TABLES, "shop.later"))
    monkeypatch.setattr(location, "_here", location._Process())  # This is the run's process.
    assert "shop/later" not in keys(build_definitions(conf))
    assert os.environ[VARIABLE] == written
    location._here.wrote = written  # This is the code server again, when it is reloaded.
    assert "shop/later" in keys(build_definitions(conf))


def test_new_tables_are_named_until_the_code_location_is_loaded_again(conf: Path, tmp_path: Path) -> None:
    build_definitions(conf)
    config, directory = conf_in_use().config, tmp_path / "data" / "engine" / "shop"
    digest = location._digest_of_tables(config, "shop")
    assert not location._new_tables(config, "shop", digest)
    write_tables(directory, (*TABLES, "shop.later"))
    assert "have changed since" in location._new_tables(config, "shop", digest)[0]


@pytest.mark.found
def test_a_table_with_the_translated_key_of_another_table_has_no_asset(conf: Path, tmp_path: Path) -> None:
    """Defect 1044: if a translation gave two tables the same key, the code location failed with KeyError. So a CREATE TABLE in the source
    ended all ticks and merges at the next reload.
    """
    shop = (conf / "destinations" / "shop.yaml").read_text()
    (conf / "destinations" / "web.yaml").write_text(shop)
    write_tables(tmp_path / "data" / "engine" / "shop", ("shop.orders", "shop.users", "crm.users"))
    write_tables(tmp_path / "data" / "engine" / "web", ("web.users", "web.visits"))

    def by_name(spec: dg.AssetSpec, table: TranslatedTable) -> dg.AssetSpec:
        return spec.replace_attributes(key=dg.AssetKey(["raw", table.table]))

    made = build_definitions(conf, translation=by_name)
    keys = made.resolve_asset_graph().materializable_asset_keys
    assert {key.path[-1] for key in keys} == {"orders", "users", "visits"}
    shown = [delta_key("shop", f"{database}.users").path for database in ("crm", "shop")]
    assert shown == [["raw", "users"], ["shop", "users"]], "a merge of shop.users is not shown as one of crm.users"
    use_translations(Translations(by_name))
    _, clashes = _with_own_keys(conf_in_use().config, "shop", {dg.AssetKey(["raw", "orders"]): "a.orders of a"})
    assert [each.partition(" has no asset")[0] for each in clashes] == ["shop.orders", "shop.users"]
    assert "the key raw/users of crm.users of shop" in clashes[1]


@pytest.mark.found
@pytest.mark.parametrize("description", ["The server of the shop.", ""])
def test_tables_share_the_asset_of_their_source_only_if_their_specs_are_equal(conf: Path, description: str) -> None:
    """Defect 1044: a translation may give one asset to all tables of the source. Only the first table kept this asset, although all specs
    were equal.
    """

    def server(spec: dg.AssetSpec, _: TranslatedTable) -> dg.AssetSpec:
        return dg.AssetSpec("server", description=description or spec.description)

    made = build_definitions(conf, source_translation=server).resolve_asset_graph()
    assert len(made.materializable_asset_keys) == (len(TABLES) if description else 1)
    assert made.get(dg.AssetKey("server")).child_keys == made.materializable_asset_keys


@pytest.mark.found
def test_a_run_notices_that_the_settings_of_its_destination_have_changed(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1046: a snapshot run in the user's code location published rows with columns that conf/ excluded meanwhile, because each
    version of the settings has a file of its own, and the run looked only at its own file.
    """
    ports = list[Ports]()
    monkeypatch.setattr(location, "definitions_of", lambda _, given: ports.append(given))

    def load(variable: str = "") -> None:
        monkeypatch.setattr(location, "_here", location._Process())
        monkeypatch.setenv(VARIABLE, variable)
        build_definitions(conf)

    load()
    of_run = os.environ[VARIABLE]
    load(of_run)
    run, shop = ports[1], conf / "destinations" / "shop.yaml"
    assert run.conf_changed("shop") == ""
    shop.write_text(shop.read_text() + "exclude: shop.items\n")
    load()
    monkeypatch.setenv(VARIABLE, of_run)  # The reload changes the environment of the code server only.
    assert run.conf_changed("shop") == "destinations/shop.yaml in conf/ has changed"


def test_only_the_newest_texts_are_kept(conf: Path, tmp_path: Path) -> None:
    for number in range(location.KEPT_MAX + 3):
        write_tables(tmp_path / "data" / "engine" / "shop", (*TABLES, f"shop.t{number}"))
        build_definitions(conf)
    folder = Path(os.environ[VARIABLE]).parent
    for kind in ("json", "tables"):
        assert len(list(folder.glob(f"component-*.{kind}"))) == location.KEPT_MAX
    assert Path(os.environ[VARIABLE]).exists()


def test_inline_settings_are_written_where_the_console_reads_them(tmp_path: Path) -> None:
    files = inline_texts(tmp_path, {"lake": "there"}, {"shop": {"source": {"user": "u"}}, "old": {}})
    write_conf(files)
    assert (tmp_path / ".sluice/conf/sluice.yaml").read_text() == "engine:\n  kind: remote\nlake: there\n"
    write_conf(inline_texts(tmp_path, {}, {"shop": {"source": {"user": "v"}}}))
    assert [each.name for each in (tmp_path / ".sluice/conf/destinations").iterdir()] == ["shop.yaml"]
    assert "user: v" in (tmp_path / ".sluice/conf/destinations/shop.yaml").read_text()


@pytest.mark.found
@pytest.mark.parametrize("given", [None, "mysql://db", ["source"]])
def test_a_destination_without_settings_is_named(given: Any, tmp_path: Path) -> None:
    """Defect 1189: a destination in `defs.yaml` whose settings were missing or no mapping ended `dg` with TypeError or ValueError."""
    with pytest.raises(ConfigurationError, match=r"destinations\.shop: write the settings of the destination"):
        inline_texts(tmp_path, {}, {"shop": given})


@pytest.mark.found
@pytest.mark.parametrize("engine", [{"kind": "embedded"}, {}, {"address": "127.0.0.1:4267"}, None])
def test_inline_settings_put_the_engines_into_a_process_of_their_own_too(engine: Any, tmp_path: Path) -> None:
    """Defect 1190: inline settings with `engine: {kind: embedded}`, or with an `engine` without `kind`, were not refused as those of a
    folder are. Ticks started the engine process again and again, which ended because it had no engine to run.
    """
    with pytest.raises(ConfigurationError, match=r"settings: set engine: \{kind: remote\}"):
        inline_texts(tmp_path, {"engine": engine}, {"shop": {"source": {"user": "u"}}})


@pytest.fixture
def silent_host(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartingHost:
    """Returns a host whose engine process does not answer. A start of the engine process runs a program that ends at once."""

    def refused(_: str) -> None:
        raise EngineAwayError("nobody answers")

    monkeypatch.setattr(sys, "executable", "/bin/false")
    files = folder_texts(conf)
    config: Any = SimpleNamespace(data_dir=tmp_path / "data")
    remote: Any = SimpleNamespace(get_or_start=refused)
    return StartingHost(remote, config, files, starts=True)


def test_a_tick_starts_the_process_once_and_says_how_it_ended(silent_host: StartingHost) -> None:
    with pytest.raises(EngineStartingError, match="are starting as processes of their own"):
        silent_host.get_or_start("shop")
    process = silent_host._engines
    assert process is not None
    assert process._process is not None
    assert process._process.wait(10) == 1
    process.log.write_text("why it ended\n")
    with pytest.raises(EngineStartingError, match="the process of the engines ended: why it ended"):
        silent_host.get_or_start("shop")


def test_a_process_that_has_no_lock_yet_is_not_started_again(
    silent_host: StartingHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "starts-slowly"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(EngineStartingError):
        silent_host.get_or_start("shop")
    assert silent_host._engines is not None
    first = silent_host._engines._process
    assert first is not None
    try:
        with pytest.raises(EngineStartingError):
            silent_host.get_or_start("shop")
        assert silent_host._engines._process is first
    finally:
        first.kill()
        first.wait()


def test_a_process_that_runs_already_is_not_started_again(silent_host: StartingHost, tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "data" / LOCK_FILE)
    assert lock.try_acquire()
    with pytest.raises(EngineStartingError):
        silent_host.get_or_start("shop")
    assert isinstance(silent_host._engines, EngineProcess)
    assert silent_host._engines._process is None


def test_an_engine_that_does_not_answer_for_long_is_the_reason(
    silent_host: StartingHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "START_SECONDS_MAX", 0.0)
    with pytest.raises(EngineStartingError):
        silent_host.get_or_start("shop")
    assert silent_host._engines is not None
    assert silent_host._engines._process is not None
    silent_host._engines._process.wait(10)
    lock = FileLock(tmp_path / "data" / LOCK_FILE)
    assert lock.try_acquire()
    monkeypatch.setattr(engine_process, "AGAIN_SECONDS", 0.0)
    with pytest.raises(EngineAwayError, match="nobody answers"):
        silent_host.get_or_start("shop")


@pytest.mark.found
def test_a_process_with_earlier_settings_is_replaced_if_it_never_answers(
    silent_host: StartingHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1042: after a reload with another token or address, the ticks kept the process with the earlier settings alive. So they
    reported forever that the engines were starting.
    """
    lock, wanted = FileLock(tmp_path / "data" / LOCK_FILE), tmp_path / "data" / engine_process.WANTED_FILE
    assert lock.try_acquire()
    now = 1000.0
    monkeypatch.setattr(engine_process, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    with pytest.raises(EngineStartingError):
        silent_host.get_or_start("shop")
    now += engine_process.START_SECONDS_MAX + 1
    os.utime(wanted, (1.0, 1.0))
    with pytest.raises(EngineAwayError, match="nobody answers"):
        silent_host.get_or_start("shop")
    assert not is_wanted(wanted.parent), "ticks no longer keep the process alive"
    lock.release()
    with pytest.raises(EngineStartingError):
        silent_host.get_or_start("shop")
    assert is_wanted(wanted.parent)
    assert silent_host._engines is not None
    assert silent_host._engines._process is not None
    silent_host._engines._process.wait(10)


@pytest.mark.found
def test_a_process_that_answers_with_an_error_is_not_replaced(
    silent_host: StartingHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1042: a process that had not answered once, and then answered that its engine was starting or on standby, was replaced after
    five minutes.
    """
    lock, wanted = FileLock(tmp_path / "data" / LOCK_FILE), tmp_path / "data" / engine_process.WANTED_FILE
    assert lock.try_acquire()
    now = 1000.0
    monkeypatch.setattr(engine_process, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    with pytest.raises(EngineStartingError):
        silent_host.get_or_start("shop")

    def on_standby(_: str) -> None:
        raise LeaseLostError("another host has the lease")

    monkeypatch.setattr(silent_host.remote, "get_or_start", on_standby)
    for _ in range(3):
        now += engine_process.START_SECONDS_MAX - 1
        os.utime(wanted, (1.0, 1.0))
        with pytest.raises(LeaseLostError):
            silent_host.get_or_start("shop")
        assert is_wanted(wanted.parent)


def test_the_process_is_wanted_while_ticks_come(tmp_path: Path) -> None:
    assert not is_wanted(tmp_path)
    (tmp_path / engine_process.WANTED_FILE).touch()
    assert is_wanted(tmp_path)
    assert not is_wanted(tmp_path, time.time() + SILENCE_SECONDS_MAX + 1)


def test_no_job_removes_runs_in_a_code_location_of_the_user(conf: Path) -> None:
    repository = build_definitions(conf).get_repository_def()
    assert repository.has_job("catch_up")
    assert not repository.has_job(PRUNE_JOB)
