"""Tests the jobs of operations on rows in Dagster: the fields of the launchpad, the interval of a partition, and how a run fails."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.orchestration.base.one_destination import one_destination
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.base.table_catalog import delta_key
from sluice.orchestration.base.testing import LEDGER_ID, position
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run.merge_run import only_writer_of_rows_read
from sluice.orchestration.run.rows import job as rows_job
from sluice.orchestration.run.rows import merged_run
from sluice.orchestration.run.rows.backfill import Done
from sluice.orchestration.run.rows.job import FIELDS, JOB, STEP, OperationKind, RowsConfig, hours, request_of
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.request import BackfillRequest, RepairRequest
from sluice.spark_jobs.tables.commit_record import CommittedInterval
from tests.fix_ledgers import FileLedger
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

NOW_US = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z


class Planned:
    """A plan that only names its destination."""

    def __init__(self, request: BackfillRequest) -> None:
        self._request = request

    def to_json(self) -> dict[str, str]:
        return {"destination": self._request.destination}


@pytest.fixture
def definitions(tmp_path: Path) -> dg.Definitions:
    config = make_config(tmp_path)
    write_tables(config.destination_dir("shop"))
    return build_definitions(config, make_fake_ports(config).ports())


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[BackfillRequest]:
    """Records what the jobs request, without doing it."""
    found: list[BackfillRequest] = []

    def run(run: RowsRun, request: BackfillRequest) -> Done:
        assert run.run
        assert run.wait_seconds > 0
        run.listener.say("done")
        found.append(request)
        return Done(begin="b:4@1", end="b:9@1", read_to="b:9@1", outcomes=(), refused={"shop.odd": "it has no key"})

    monkeypatch.setattr(rows_job, "run_backfill", run)
    return found


def test_the_launchpad_says_what_each_field_of_an_operation_means(definitions: dg.Definitions) -> None:
    job = definitions.resolve_job_def(JOB)
    (op,) = job.all_node_defs
    requested: Any = op.config_schema
    fields = requested.config_type.fields
    assert set(fields) == {"operation", "destination", "tables", *set().union(*FIELDS.values())}
    assert not any(field.is_required for field in fields.values()), "the launchpad opens with a config that is valid"
    assert all(field.description for field in fields.values())


def test_a_backfill_from_a_time_is_what_the_config_says(
    definitions: dg.Definitions, requests: list[BackfillRequest]
) -> None:
    job = definitions.resolve_job_def(JOB)
    config = {"from_time": "2026-03-01T11:00:00Z", "to_time": "2026-03-01T12:00:00Z", "tables": ["shop.orders"]}
    result = job.execute_in_process(run_config={"ops": {STEP: {"config": config}}})
    assert result.success
    expected = BackfillRequest(
        destination="shop", from_us=NOW_US - 3_600_000_000, to_us=NOW_US, tables=("shop.orders",)
    )
    assert requests == [expected]


def test_a_partition_of_a_backfill_is_its_hour(definitions: dg.Definitions, requests: list[BackfillRequest]) -> None:
    job = definitions.resolve_job_def("backfill_shop_by_hour")
    assert job.partitions_def is not None
    last = job.partitions_def.get_partition_keys()[-2]
    assert job.execute_in_process(partition_key=last).success
    begin = round(dt.datetime.strptime(last, "%Y-%m-%d-%H:%M").replace(tzinfo=dt.UTC).timestamp() * 1_000_000)
    assert requests == [BackfillRequest(destination="shop", from_us=begin, to_us=begin + 3_600_000_000, tables=())]


def test_the_hours_of_a_backfill_are_those_that_a_source_may_have() -> None:
    now = dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC)
    keys = hours(now).get_partition_keys(current_time=now)
    assert (keys[0], keys[-1]) == ("2026-01-29-00:00", "2026-03-01-12:00")


def test_a_backfill_that_cannot_be_fails_with_its_sentence(definitions: dg.Definitions) -> None:
    job = definitions.resolve_job_def(JOB)
    run_config = {"ops": {STEP: {"config": {"from_time": "noon"}}}}
    result = job.execute_in_process(run_config=run_config, raise_on_error=False)
    assert not result.success
    (failed,) = result.get_step_failure_events()
    assert "'noon' is not a time" in str(failed.event_specific_data)


def test_a_backfill_is_of_the_only_destination_or_of_the_one_that_is_named(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    found = request_of(config, RowsConfig(from_time="-10m"), NOW_US)
    assert found == BackfillRequest(destination="shop", from_us=NOW_US - 600_000_000, to_us=None, tables=())
    hour = request_of(config, RowsConfig(), NOW_US)
    assert isinstance(hour, BackfillRequest)
    assert hour.from_us == NOW_US - 3_600_000_000
    for operation in OperationKind:
        with pytest.raises(ConfigurationError, match="the destination 'shoe' does not exist"):
            request_of(config, RowsConfig(operation=operation, destination="shoe"), NOW_US)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (RowsConfig(operation=OperationKind.repair, from_time="-1h"), "a repair has no from_time"),
        (RowsConfig(operation=OperationKind.repair, to_time="-1h", into="a.b"), "a repair has no into, to_time"),
        (RowsConfig(settle_seconds=1.0, where="a"), "a backfill has no settle_seconds, where"),
        (RowsConfig(operation=OperationKind.snapshot, only_plan=True), "a snapshot has no only_plan"),
    ],
)
def test_a_field_of_another_operation_is_refused(tmp_path: Path, given: RowsConfig, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        request_of(make_config(tmp_path), given, NOW_US)


def test_the_operation_of_a_config_is_what_the_run_does(tmp_path: Path) -> None:
    given = RowsConfig(operation=OperationKind.repair, tables=["shop.orders"], settle_seconds=9.0)
    assert request_of(make_config(tmp_path), given, NOW_US) == RepairRequest(
        destination="shop", tables=("shop.orders",), settle_seconds=9.0
    )


@pytest.mark.seeds
def test_a_backfill_of_gtids_is_of_exactly_these_transactions(tmp_path: Path) -> None:
    found = request_of(make_config(tmp_path), RowsConfig(gtids="0-1-20,0-1-21", tables=["shop.orders"]), NOW_US)
    assert found == BackfillRequest(
        destination="shop", from_us=0, to_us=None, tables=("shop.orders",), gtids="0-1-20,0-1-21"
    )


@pytest.mark.seeds
def test_a_backfill_of_a_run_is_of_what_the_logs_say_that_it_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path)
    write_tables(config.destination_dir("shop"))
    commit = CommittedInterval(version_before=1, version=2, operation="MERGE", committed_at_us=9, table="t", run="one")
    merged = dataclasses.replace(
        commit, start={"file": "b.1"}, end={"file": "b.1"}, first_commit_time_us=5, last_commit_time_us=7
    )
    monkeypatch.setattr(merged_run, "_history", lambda *requested: [merged] if requested[2] == "shop.orders" else [])
    found = request_of(config, RowsConfig(run="one"), NOW_US)
    assert found == BackfillRequest(destination="shop", from_us=5, to_us=8, tables=("shop.orders",))
    for given, why in (
        (RowsConfig(run="two"), "no Delta log of the requested tables has a batch of the run 'two'"),
        (RowsConfig(run="one", tables=["shop.absent"]), "shop.absent: these tables are not captured"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            request_of(config, given, NOW_US)


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (RowsConfig(run="x", from_time="-1h"), "by from_time and to_time, or by run, or by gtids"),
        (RowsConfig(run="x", to_time="-1h"), "by from_time and to_time, or by run, or by gtids"),
        (RowsConfig(gtids="0-1-2", from_time="-1h"), "by from_time and to_time, or by run, or by gtids"),
        (RowsConfig(gtids="0-1-2", to_time="-1h"), "by from_time and to_time, or by run, or by gtids"),
        (RowsConfig(gtids="0-1-2", run="x"), "by from_time and to_time, or by run, or by gtids"),
        (RowsConfig(gtids="0-1-2", into="a.b", tables=["a.c"]), "into builds a table as it was at a time"),
    ],
)
def test_a_backfill_names_its_changes_once(tmp_path: Path, given: RowsConfig, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        request_of(make_config(tmp_path), given, NOW_US)


def test_a_snapshot_is_requested_with_its_condition(definitions: dg.Definitions, tmp_path: Path) -> None:
    directory, job = make_config(tmp_path).destination_dir("shop"), definitions.resolve_job_def(JOB)
    FileLedger(directory).update(lambda _: Ledger(ledger_id=LEDGER_ID, cursor=position(4)))
    config = {"operation": "snapshot", "tables": ["shop.orders"], "where": "id < 9"}
    result = job.execute_in_process(run_config={"ops": {STEP: {"config": config}}})
    (record,) = SnapshotRecords(directory).all()
    assert (record.name, record.where, record.state) == ("shop.orders", "id < 9", SnapshotState.WANTED)
    (observed,) = result.get_asset_observation_events()
    assert observed.asset_key == delta_key("shop", "shop.orders")
    config["tables"] = ["shop.other"]
    refused = job.execute_in_process(run_config={"ops": {STEP: {"config": config}}}, raise_on_error=False)
    (failed,) = refused.get_step_failure_events()
    assert "shop does not capture shop.other" in str(failed.event_specific_data)


def test_a_plan_of_a_backfill_changes_nothing(
    definitions: dg.Definitions, requests: list[BackfillRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_job, "plan_backfill", lambda _config, request: Planned(request))
    job = definitions.resolve_job_def(JOB)
    result = job.execute_in_process(run_config={"ops": {STEP: {"config": {"only_plan": True}}}})
    (handled,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
    reported: Any = handled.step_output_data.metadata
    assert reported["plan"].value == {"destination": "shop"}
    assert not requests


def test_what_was_read_as_conf_was_before_is_not_written(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    fakes = make_fake_ports(config)
    with only_writer_of_rows_read(fakes.ports(), config, "shop", print):
        assert fakes.files.held_by is not None
    fakes.conf_changed = "destinations/shop.yaml in conf/ has changed"
    with (
        pytest.raises(
            MergeFailedError,
            match=r"has changed since this run began to read; nothing was written: start the run again",
        ),
        only_writer_of_rows_read(fakes.ports(), config, "shop", print),
    ):
        pytest.fail("it may write")
    assert fakes.files.held_by is None


@pytest.mark.found
def test_a_job_without_a_destination_says_which_ones_there_are() -> None:
    """Defect 30: a launchpad accepted an empty destination, and the run failed with "there is no destination ''"."""
    assert one_destination("", {"shop"}) == "shop"
    assert one_destination("stock", {"shop", "stock"}) == "stock"
    with pytest.raises(ConfigurationError, match="`destination` is empty: write one of shop, stock"):
        one_destination("", {"shop", "stock"})
    with pytest.raises(
        ConfigurationError, match="the destination 'shoe' does not exist; configured destinations: shop"
    ):
        one_destination("shoe", {"shop"})
