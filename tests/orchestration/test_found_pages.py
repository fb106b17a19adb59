"""Tests what Dagster's pages show: keys, groups, checks, tags and launchpads. The tests read the definitions, and execute runs in the
test's process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.status_file import STATUS_FILE
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.table_catalog import ENGINE, SOURCE, delta_key, engine_key, source_key
from sluice.orchestration.base.testing import position
from sluice.orchestration.checks.observations import TABLE_CHECK
from sluice.orchestration.checks.stopped import FlowingTables
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables
from tests.orchestration.sensor.test_runs import ORDERS, Shop

pytestmark = pytest.mark.found


def test_keys_repeat_no_name_and_no_two_tables_have_one() -> None:
    """Defect 30: the asset of table film in database sakila, of the destination sakila, was sakila/sakila/film."""
    assert delta_key("sakila", "sakila.film").path == ["sakila", "film"]
    assert source_key("sakila", "sakila.film").path == [SOURCE, "sakila", "film"]
    assert delta_key("sakila", "stock.film").path == ["sakila", "stock", "film"]
    assert delta_key("other", "sakila.film").path == ["other", "sakila", "film"], "of another destination"
    assert delta_key("sakila", f"sakila.{ENGINE}") != engine_key("sakila")
    names = ("a", "b", ENGINE, SOURCE.lower(), "mysql")
    keys = [engine_key(name) for name in names]
    for destination, database, table in itertools.product(names, repeat=3):
        keys += [delta_key(destination, f"{database}.{table}"), source_key(destination, f"{database}.{table}")]
    assert max(Counter(keys).values()) == 1


def test_a_group_of_the_sidebar_lists_each_name_once(tmp_path: Path) -> None:
    """Defect 30: the sidebar listed each table twice in one group: as a table of the source and as a table of the lake."""
    config = make_config(tmp_path)
    write_tables(config.destination_dir("shop"))
    graph = build_definitions(config, make_fake_ports(config).ports()).resolve_asset_graph()
    shown = Counter((graph.get(key).group_name, key.path[-1]) for key in graph.get_all_asset_keys())
    assert max(shown.values()) == 1
    assert {group for group, _ in shown} == {"shop", "shop_source"}


def counts(instance: dg.DagsterInstance, key: dg.AssetKey, check: str) -> bool:
    """Returns whether Dagster's pages count the newest result of a check. They do not count it once its asset was materialized again."""
    name = dg.AssetCheckKey(key, check)
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([name]).get(name)
    return record is not None and asyncio.run(record.targets_latest_materialization(LoadingContextForTest(instance)))


def test_the_check_of_a_table_counts_after_each_of_its_merges(tmp_path: Path) -> None:
    """Defect 30: "0 / 2 Passed" was next to a green tick, because no result counted for the newest materialization."""
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        shop = Shop(tmp_path, instance)
        for _ in range(2):
            batch, reference = shop.hand_out()
            assert shop.run(reference).success
            assert counts(instance, ORDERS, TABLE_CHECK)
            shop.fakes.engine.ack(batch)
        graph = shop.defs.resolve_asset_graph()
        assert {each.name for each in graph.asset_check_keys if each.asset_key == ORDERS} == {TABLE_CHECK}
        equal = {each.name for each in graph.asset_check_keys if each.asset_key == source_key("shop", "shop.orders")}
        assert equal == {"equals_lake"}, "on the source's asset, which nothing materializes"


def test_a_run_reports_no_success_of_a_table_that_has_stopped(tmp_path: Path) -> None:
    """Test for the fix of defect 30: the results that runs report hide no failure that the sensor reported."""
    config = make_config(tmp_path)
    directory = config.destination_dir("shop")
    write_tables(directory)
    stopped = StoppedTable(
        database="shop", table="orders", state=TableState.DDL_UNSUPPORTED, reason="x", position=position(9)
    )
    write_status(
        directory / STATUS_FILE,
        EngineStatus(state="RUNNING", updated_at_us=time.time_ns() // 1000, stopped_tables=(stopped,)),
    )
    flowing = FlowingTables(config, "shop")
    assert flowing.passed("shop.orders") == []
    assert [each.passed for each in flowing.passed("shop.items")] == [True]
    assert flowing.passed("shop.new") == [], "it has no check yet"


def test_the_engine_is_observed_and_not_one_that_was_never_materialized(tmp_path: Path) -> None:
    """Defect 30: the page of an engine showed "Never materialized", although the engine is observed once per minute."""
    config = make_config(tmp_path)
    write_tables(config.destination_dir("shop"))
    write_status(config.destination_dir("shop") / STATUS_FILE, EngineStatus(state="RUNNING", lag_seconds=1.5))
    defs = build_definitions(config, make_fake_ports(config).ports())
    engine = engine_key("shop")
    assert defs.resolve_asset_graph().get(engine).is_observable
    job = dg.define_asset_job("observe", selection=dg.AssetSelection.assets(engine))
    both = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
    (event,) = both.resolve_job_def("observe").execute_in_process().get_asset_observation_events()
    metadata: Any = event.asset_observation_data.asset_observation.metadata
    assert (metadata["state"].value, metadata["lag_seconds"].value) == ("RUNNING", 1.5)


def test_a_run_has_tags_to_filter_by(tmp_path: Path) -> None:
    """Defect 30: a run had twelve tags, and most of them were parts of its batch's name."""
    config = make_config(tmp_path)
    fakes = make_fake_ports(config)
    fakes.engine.capture(5)
    batch = fakes.engine.hand_out(0)
    assert batch is not None
    reference = BatchReference.of("shop", batch)
    assert reference.to_tags() == {"sluice/destination": "shop", "sluice/batch": reference.run_key}
    assert set(dataclasses.asdict(reference)) == set(reference.to_config()), "the parts are in the run's config"


def test_each_launchpad_opens_valid_or_names_what_is_missing(tmp_path: Path) -> None:
    """Defect 30: launchpads opened with an error, or accepted an empty destination."""
    one = make_config(tmp_path)
    web = one.destinations["shop"].model_copy(update={"name": "web"})
    two = one.model_copy(update={"destinations": {**one.destinations, "web": web}})
    write_tables(one.destination_dir("shop"))
    jobs = {
        each.name: each
        for each in build_definitions(one, make_fake_ports(one).ports()).get_repository_def().get_all_jobs()
    }
    assert {
        "operate_engine",
        "catch_up",
        "operate_on_rows",
        "merge_shop_job",
    } <= jobs.keys()
    for job in jobs.values():
        dg.validate_run_config(job, {})
    several = build_definitions(two, make_fake_ports(two).ports())
    for name in ("operate_engine", "decide", "catch_up", "operate_on_rows"):
        job = several.resolve_job_def(name)
        (op,) = [each.name for each in job.all_node_defs]
        with pytest.raises(dg.DagsterInvalidConfigError, match=r"(?s)[Mm]issing required config entr.*destination"):
            dg.validate_run_config(job, {"ops": {op: {"config": {}}}})
        for wrong in ("", "shoe"):
            with pytest.raises(
                dg.DagsterInvalidConfigError, match=r"destination not in enum type Literal\['shop', 'web'\]"
            ):
                dg.validate_run_config(job, {"ops": {op: {"config": {"destination": wrong}}}})
        assert dg.validate_run_config(job, {"ops": {op: {"config": {"destination": "web"}}}})


def test_each_job_schedule_and_sensor_says_what_it_does(tmp_path: Path) -> None:
    """Defect 30: schedules had no descriptions, and a job was called `instance`."""
    config = make_config(tmp_path)
    write_tables(config.destination_dir("shop"))
    repository = build_definitions(config, make_fake_ports(config).ports()).get_repository_def()
    shown: list[Any] = [*repository.schedule_defs, *repository.sensor_defs, *repository.get_all_jobs()]
    assert repository.schedule_defs
    assert repository.sensor_defs
    silent = {each.name for each in shown if not (each.description or "").strip()}
    assert silent <= {"__ASSET_JOB"}, "which is Dagster's"
    assert "instance" not in {each.name for each in shown}
