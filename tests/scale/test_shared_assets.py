"""Tests a destination with more tables than `table_assets_max`: which tables are assets, what their shared assets show, and what runs
report.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the type of `context` at runtime.

import dataclasses
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.config import SluiceConfig, TableConfig
from sluice.cdc_engine.config.shards import ShardsConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot import groups
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.work import SnapshotDependencies
from sluice.equality.values import Verdict
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.shown_tables import others_key, others_source_key, shown_tables
from sluice.orchestration.base.table_catalog import delta_key, source_key
from sluice.orchestration.base.testing import FakePorts, fake_report
from sluice.orchestration.checks.equality import EQUAL_CHECK
from sluice.orchestration.checks.observations import TABLE_CHECK
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run.decisions.launchpad import Launchpad
from sluice.orchestration.run.decisions.waiting import waiting
from sluice.orchestration.run.table_events import TableEvents
from sluice.spark_jobs.snapshot.publication import PublishedSnapshot
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

NAMED, FIRST, SECOND, ELSEWHERE = "shop.orders", "shop.items", "shop.returns", "crm.people"
TABLES = (NAMED, FIRST, SECOND, ELSEWHERE)
SHOP, CRM = others_key("shop", "shop"), others_key("shop", "crm")

pytestmark = pytest.mark.scale


class Many:
    """A destination with four tables, which may have at most three assets of tables. One of the tables has an entry in conf/."""

    def __init__(self, root: Path) -> None:
        config = make_config(root)
        given = {"table_assets_max": 3, "tables": {NAMED: TableConfig(owners=("ann@example.org",))}}
        shop = config.destinations["shop"].model_copy(update=given)
        self.config: SluiceConfig = config.model_copy(update={"destinations": {"shop": shop}})
        write_tables(config.destination_dir("shop"), TABLES)
        self.fakes: FakePorts = make_fake_ports(self.config, (*TABLES, "shop.created_since"))
        self.defs = build_definitions(self.config, self.fakes.ports())

    def merge(self, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
        self.fakes.engine.capture(5)
        batch = self.fakes.engine.hand_out(0)
        assert batch is not None
        reference = BatchReference.of("shop", batch)
        return self.defs.resolve_job_def("merge_shop_job").execute_in_process(
            instance=instance,
            run_config={"ops": {"merge_shop": {"config": reference.to_config()}}},
            tags=reference.to_tags(),
        )


@pytest.fixture
def many(tmp_path: Path) -> Many:
    return Many(tmp_path)


def reported_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dict[str, Any]]:
    records = instance.fetch_materializations(key, limit=9).records
    events = [each.asset_materialization for each in records]
    return [{name: value.value for name, value in event.metadata.items()} for event in events if event]


def test_a_table_that_conf_names_is_an_asset_and_the_others_share_one_per_database(many: Many) -> None:
    graph = many.defs.resolve_asset_graph()
    keys = graph.get_all_asset_keys()
    assert {delta_key("shop", NAMED), source_key("shop", NAMED), SHOP, CRM} <= keys
    assert not {delta_key("shop", each) for each in (FIRST, SECOND, ELSEWHERE)} & keys
    shared = graph.get(SHOP)
    assert shared.parent_keys == {others_source_key("shop", "shop")}
    assert not shared.is_materializable, "it would re-snapshot all of them"
    contents = shared.metadata["table_of_contents"].value
    assert contents.splitlines() == ["- `items`: 1 columns, keyed by `id`", "- `returns`: 1 columns, keyed by `id`"]
    checked = {each.asset_key for each in graph.asset_check_keys if each.name == TABLE_CHECK}
    assert checked == {delta_key("shop", NAMED)}
    assert list(graph.get(delta_key("shop", NAMED)).owners) == ["ann@example.org"]


def test_up_to_the_limit_every_table_is_an_asset(many: Many) -> None:
    write_tables(many.config.destination_dir("shop"), TABLES[:3])
    keys = build_definitions(many.config, many.fakes.ports()).resolve_asset_graph().get_all_asset_keys()
    assert {delta_key("shop", each) for each in TABLES[:3]} <= keys
    assert SHOP not in keys


def test_a_run_reports_a_batch_with_one_event_per_database(many: Many, tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        result = many.merge(instance)
        assert result.success
        (shop,), (crm,) = reported_of(instance, SHOP), reported_of(instance, CRM)
        (own,) = reported_of(instance, delta_key("shop", NAMED))
        for name in (FIRST, "shop.created_since"):
            assert not reported_of(instance, delta_key("shop", name))
        planned = [each for each in result.all_events if each.event_type_value == "ASSET_MATERIALIZATION_PLANNED"]
    assert not planned
    assert (shop["tables_changed"], crm["tables_changed"]) == (3, 1), "also a table that was created since"
    assert (shop["source_rows"], shop["rows_changed"]) == (3 * own["source_rows"], 3 * own["rows_changed"])
    assert "| `created_since` | 6 | 6 | 5 |" in shop["tables"]
    assert (shop["end_position"], own["delta_version"]) == (own["end_position"], 5)
    assert "dagster/column_schema" not in shop


def test_a_table_that_cannot_be_shown_hides_no_other(
    many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*_: Any) -> dict[str, Any]:
        raise ValueError("odd")

    monkeypatch.setattr("sluice.orchestration.run.merge_reports.others_metadata", odd)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert many.merge(instance).success
        assert reported_of(instance, delta_key("shop", NAMED))
        assert not reported_of(instance, SHOP)


def test_a_run_is_requested_without_a_selection_of_assets(many: Many, tmp_path: Path) -> None:
    many.fakes.engine.capture(5)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        context = dg.build_sensor_context(instance=instance, repository_def=many.defs.get_repository_def())
        with context:
            found: Any = many.defs.resolve_sensor_def("shop_engine").evaluate_tick(context)
    (request,) = found.run_requests
    assert request.asset_selection is None


def test_a_run_that_may_find_more_tables_than_the_definitions_is_requested_without_a_selection(
    many: Many, tmp_path: Path
) -> None:
    """A run on another host builds its definitions from the engine's current list. Before, the merge job of such a run refused the
    selection forever.
    """
    directory = many.config.destination_dir("shop")
    write_tables(directory, TABLES[:3])
    defs = build_definitions(many.config, many.fakes.ports())
    many.fakes.engine.capture(5)

    def selected(instance: dg.DagsterInstance) -> Any:
        context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
        with context:
            found: Any = defs.resolve_sensor_def("shop_engine").evaluate_tick(context)
        (request,) = found.run_requests
        return request.asset_selection

    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert delta_key("shop", FIRST) in selected(instance)
        write_tables(directory, TABLES)
        assert selected(instance) is None


def test_a_snapshot_run_reports_a_group_with_one_event_per_database(
    many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Position(epoch=1, file="b.000001", offset=400)
    records = [
        wanted(name, None, 0.0).began(begin, version="1", key=("id",), columns=(), rows_expected=7, now=0.0)
        for name in TABLES
    ]

    def publish(*_: object, **__: object) -> PublishedSnapshot:
        return PublishedSnapshot(rows=7, label=1, delta_version=1, files=1, seconds=1.0, columns=(("id", "bigint"),))

    def run_all(snapshots: SnapshotDependencies, _: float) -> None:
        for record in (each.with_chunks(1, 7, 4096) for each in records):
            with snapshots.run_lock():
                table = TableVersion(database=record.database, table=record.table, columns=(), key=("id",))
                snapshots.publish(record, table)
            snapshots.progress(record)

    monkeypatch.setattr(groups, "run_all", run_all)
    ports = dataclasses.replace(many.fakes.ports(), publish=publish)
    job = build_definitions(many.config, ports).resolve_job_def("snapshot_shop_job")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert job.execute_in_process(instance=instance).success
        (shop,), (crm,) = reported_of(instance, SHOP), reported_of(instance, CRM)
        (own,) = reported_of(instance, delta_key("shop", NAMED))
    assert (shop["tables_published"], shop["snapshot_rows"], shop["rows_inserted"]) == (2, 14, 14)
    assert f"| `{SECOND}` | 7 | 1 |" in shop["tables"]
    assert (crm["tables_published"], own["snapshot_rows"]) == (1, 7)


def test_materialize_on_an_asset_of_its_own_requests_its_snapshot(many: Many, tmp_path: Path) -> None:
    job = many.defs.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        result = job.execute_in_process(
            instance=instance, asset_selection=[delta_key("shop", NAMED)], raise_on_error=False
        )
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "has no position yet" in str(failed.step_failure_data.user_failure_data), "as for every other table"


def test_equality_the_check_of_a_shared_asset_compares_all_its_tables(many: Many, tmp_path: Path) -> None:
    many.fakes.compare.verdicts[FIRST] = Verdict.DIFFERENT
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        result = many.defs.resolve_job_def("equal_shop_job").execute_in_process(instance=instance)
    ((tables, _),) = many.fakes.compare.compared
    assert tables == sorted(TABLES)
    found = {each.asset_key: each for each in result.get_asset_check_evaluations()}
    shared = found[others_source_key("shop", "shop")]
    assert shared.check_name == EQUAL_CHECK
    assert (shared.passed, shared.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert shared.metadata["tables"].value == 2
    assert str(shared.description) == f"1 of 2 tables were not found equal: {FIRST}"


@pytest.mark.found
def test_equality_the_check_of_a_shared_asset_counts_only_tables_with_differences_as_different(
    many: Many, tmp_path: Path
) -> None:
    """Defect 88: a table that was not compared, for example because it had stopped, was counted as different."""
    many.fakes.compare.verdicts[FIRST] = Verdict.REFUSED
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        result = many.defs.resolve_job_def("equal_shop_job").execute_in_process(instance=instance)
    found = {each.asset_key: each for each in result.get_asset_check_evaluations()}
    shared = found[others_source_key("shop", "shop")]
    assert (shared.passed, shared.severity) == (False, dg.AssetCheckSeverity.WARN)
    counts = {name: shared.metadata[f"tables_{name}"].value for name in ("different", "undecided", "refused")}
    assert counts == {"different": 0, "undecided": 0, "refused": 1}
    assert found[others_source_key("shop", "crm")].passed
    assert found[source_key("shop", NAMED)].passed


def test_equality_an_error_in_one_shared_asset_keeps_the_results_of_those_before(many: Many, tmp_path: Path) -> None:
    many.fakes.compare.errors[SECOND] = SourceConnectionError("the source does not answer")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        job = many.defs.resolve_job_def("equal_shop_job")
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    found = {each.asset_key: each for each in result.get_asset_check_evaluations()}
    assert found[others_source_key("shop", "crm")].passed, "all tables of this asset were compared"
    assert others_source_key("shop", "shop") not in found, "a part of its tables says nothing about the rest"


def test_a_shared_table_that_differs_waits_for_a_decision_and_its_result_of_before_does_not(
    many: Many, tmp_path: Path
) -> None:
    earlier = dg.AssetCheckEvaluation(
        asset_key=source_key("shop", SECOND), check_name=EQUAL_CHECK, passed=False, metadata={}, description="old"
    )
    many.fakes.compare.verdicts |= dict.fromkeys((FIRST, ELSEWHERE), Verdict.DIFFERENT)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        instance.report_runless_asset_event(earlier)
        many.defs.resolve_job_def("equal_shop_job").execute_in_process(instance=instance)
        shown, directory = shown_tables(many.config, "shop"), many.config.destination_dir("shop")
        listed = waiting(instance, directory, "shop", Launchpad(), shown)
    assert f"- **`{FIRST}`**: " in listed
    assert f"- **`{ELSEWHERE}`**: " in listed, "the only one of its database"
    assert SECOND not in listed


def test_a_publication_is_reported_at_the_asset_that_shows_the_table(many: Many, tmp_path: Path) -> None:
    @dg.op
    def publish(context: dg.OpExecutionContext) -> None:
        events = TableEvents(context, many.config, "shop")
        for name in (NAMED, FIRST):
            events.written(name, fake_report(name), {})
            events.sides_written(name, fake_report(name), {})
            events.passed(name)

    @dg.job
    def job() -> None:
        publish()

    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert job.execute_in_process(instance=instance).success
        (shop,), (own,) = reported_of(instance, SHOP), reported_of(instance, delta_key("shop", NAMED))
    assert shop == {"table": FIRST}
    assert "dagster/column_schema" in own


def test_shards_with_a_freshness_policy_are_assets_of_their_own(many: Many) -> None:
    shards = ShardsConfig(tables=r"crm\..*", into="crm/all", options=TableConfig(fresh_within_minutes=5.0))
    shop = many.config.destinations["shop"].model_copy(update={"shards": (shards,)})
    shown = shown_tables(many.config.model_copy(update={"destinations": {"shop": shop}}), "shop")
    assert shown.has_asset(ELSEWHERE), "`tables` cannot name it"
    assert not shown.has_asset(FIRST)


def test_reported_tables_and_definitions_use_one_rule(many: Many) -> None:
    shown = shown_tables(many.config, "shop")
    assert shown.key(NAMED) == delta_key("shop", NAMED)
    assert shown.key("shop.created_since") == SHOP
