"""Tests the job and the schedules that maintain a destination's tables, as Dagster shows them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import dagster as dg
import deltalake
import pyarrow as pa
import pytest
import yaml
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from sluice.cdc_engine.config import TableConfig
from sluice.cdc_engine.config.operation import MaintenanceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.orchestration.base.batch_reference import LEDGER_TAG
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run import maintain_jobs, maintain_run
from sluice.orchestration.run.maintain_jobs import minute_of
from sluice.orchestration.run.maintain_run import Looked, MaintainRequest
from sluice.orchestration.run.rows import job as rows_job
from sluice.orchestration.run.spark_merge import KeptRecords
from sluice.spark_jobs.maintain.rule import FileFacts, MaintenanceAct
from sluice.spark_jobs.maintain.tables import Maintained, MaintainedTable, catch_up
from sluice.spark_jobs.staged_batch import DELETED
from sluice.spark_jobs.table_owner import Owner, TableRecord
from sluice.spark_jobs.tables.delta_table import METADATA_COLUMNS
from tests.fix_ledgers import FileLedger
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

MADE = Maintained(
    name="shop.orders",
    act=MaintenanceAct.COMPACT,
    reason="21 files of the table are small",
    before=FileFacts(files=21, bytes=900, deleted=3),
    after=FileFacts(files=1, bytes=800, rows=12, deleted=2),
    version=9,
)


def definitions(root: Path, **given: Any) -> dg.Definitions:
    config = make_config(root)
    shop = config.destinations["shop"].model_copy(update={"maintenance": MaintenanceConfig(**given)})
    config = config.model_copy(update={"destinations": {"shop": shop}})
    write_tables(config.destination_dir("shop"))
    return build_definitions(config, make_fake_ports(config).ports())


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[MaintainRequest]:
    """Records what the job requests, without doing it."""
    found: list[MaintainRequest] = []

    unchanged = dataclasses.replace(MADE, act=MaintenanceAct.NOTHING, reason="the files are large")

    def run(*given: Any, run: str) -> Looked:
        _, _, request, say, done = given
        assert run
        found.append(request)
        on_merged: Callable[[Maintained], None] = done
        say("looked")
        on_merged(unchanged)
        on_merged(MADE)
        return Looked(
            done=(unchanged, MADE),
            failed={"shop.odd": "no disk"} if request.force else {},
            hours=168.0,
            snapshots_removed=2,
        )

    monkeypatch.setattr(maintain_jobs, "run_maintenance", run)
    return found


@pytest.mark.found
def test_what_was_done_is_in_the_metadata(tmp_path: Path, requests: list[MaintainRequest]) -> None:
    """Defect 94: each run stored an observation of each table in Dagster's storage, also of tables that it left as they were."""
    job = definitions(tmp_path).resolve_job_def("maintain_shop_job")
    result = job.execute_in_process(run_config={"ops": {"maintain_shop": {"config": {"tables": ["shop.orders"]}}}})
    assert result.success
    assert requests == [MaintainRequest(destination="shop", tables=("shop.orders",))]
    (reported,) = result.asset_observations_for_node("maintain_shop")
    found = {name: value.value for name, value in reported.metadata.items()}
    assert (found["files_before"], found["files_after"], found["bytes_before"], found["bytes_after"]) == (
        21,
        1,
        900,
        800,
    )
    assert (found["marked_rows_before"], found["delta_version"]) == (3, 9)
    assert (found["dagster/row_count"], found["dagster/size_bytes"]) == (10, 800), "as the table's page shows it"
    assert found["maintenance"] == "compact: 21 files of the table are small"


def test_a_table_that_cannot_be_looked_after_fails_the_run_by_name(
    tmp_path: Path, requests: list[MaintainRequest]
) -> None:
    job = definitions(tmp_path).resolve_job_def("maintain_shop_job")
    config = {"ops": {"maintain_shop": {"config": {"force": True}}}}
    result = job.execute_in_process(run_config=config, raise_on_error=False)
    assert not result.success
    assert requests
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "shop.odd: no disk" in str(failed.step_failure_data.user_failure_data)


def test_schedules_are_on_where_conf_names_a_time(tmp_path: Path, requests: list[MaintainRequest]) -> None:
    usual = definitions(tmp_path / "usual")
    given = definitions(tmp_path / "given", optimize="", vacuum="1 2 * * *")
    running, stopped = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    found = {
        name: [each.resolve_schedule_def(f"{act}_shop_schedule") for act in ("optimize", "vacuum")]
        for name, each in (("usual", usual), ("given", given))
    }
    assert [(each.cron_schedule, each.default_status) for each in found["usual"]] == [
        (f"{minute_of('shop')} * * * *", running),
        (f"{minute_of('shop')} 4 * * 0", stopped),
    ]
    assert [(each.cron_schedule, each.default_status) for each in found["given"]] == [
        (f"{minute_of('shop')} * * * *", stopped),
        ("1 2 * * *", running),
    ]
    for schedule, request in zip(
        found["usual"],
        (MaintainRequest(destination="shop"), MaintainRequest(destination="shop", optimize=False, vacuum=True)),
        strict=True,
    ):
        with (
            dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
            dg.build_schedule_context(instance=instance) as context,
        ):
            tick: Any = schedule.evaluate_tick(context)
        job = usual.resolve_job_def("maintain_shop_job")
        assert job.execute_in_process(run_config=tick.run_requests[0].run_config).success
        assert dataclasses.asdict(requests[-1]) == dataclasses.asdict(request)


def test_a_table_that_does_not_get_the_lock_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path)
    LakeTables(config.destination_dir("shop")).keep({"shop.a": ("x", 1), "shop.b": ("y", 1)})

    def one(*given: Any) -> list[Maintained]:
        if given[3].name == "shop.a":
            raise MergeFailedError("another run holds the lock")
        return [MADE]

    monkeypatch.setattr(maintain_run, "_one", one)
    monkeypatch.setattr(maintain_run, "_table", lambda *given: SimpleNamespace(name=given[2]))
    ports = make_fake_ports(config).ports()
    looked = maintain_run.run_maintenance(ports, config, MaintainRequest(destination="shop"), lambda _: None)
    assert looked.failed == {"shop.a": "another run holds the lock"}
    assert looked.done == (MADE,)


def test_no_second_run_is_requested_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = definitions(tmp_path)
    schedule, job = made.resolve_schedule_def("optimize_shop_schedule"), made.resolve_job_def("maintain_shop_job")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = instance.create_run_for_job(job)
        instance.report_dagster_event(dg.DagsterEvent("PIPELINE_START", job.name), run.run_id)
        with dg.build_schedule_context(instance=instance) as context:
            tick = schedule.evaluate_tick(context)
            assert not tick.run_requests
            assert tick.skip_message == "a run of maintain_shop_job is in progress"
            monkeypatch.setattr(maintain_jobs, "LOST_SECONDS", -1.0)
            assert schedule.evaluate_tick(context).run_requests, "its process was killed, and nobody else would say so"
        ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.FAILURE


@pytest.mark.found
def test_a_run_that_was_never_submitted_does_not_end_maintenance_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1040: a run that Dagster created and could not submit has no start time. The schedule waited for its end, and requested no
    run any more.
    """
    made = definitions(tmp_path)
    schedule, job = made.resolve_schedule_def("optimize_shop_schedule"), made.resolve_job_def("maintain_shop_job")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.create_run_for_job(job)
        with dg.build_schedule_context(instance=instance) as context:
            assert not schedule.evaluate_tick(context).run_requests, "it may still be submitted"
            monkeypatch.setattr("sluice.orchestration.base.open_runs.state_seconds", lambda _: 200.0)
            assert schedule.evaluate_tick(context).run_requests


@pytest.mark.found
def test_runs_of_another_installation_neither_delay_maintenance_nor_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1113: two code locations with Sluice can have a destination of the same name. The schedules of one were skipped while a run of
    the other was open, and marked this run as failed after a day.
    """
    made = definitions(tmp_path)
    FileLedger(make_config(tmp_path).destination_dir("shop")).update(lambda _: Ledger(ledger_id="0123456789ab"))
    schedule, job = made.resolve_schedule_def("optimize_shop_schedule"), made.resolve_job_def("maintain_shop_job")
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.build_schedule_context(instance=instance) as context,
    ):
        others = instance.create_run_for_job(job, tags={LEDGER_TAG: "ffffffffffff"}, status=dg.DagsterRunStatus.STARTED)
        tick: Any = schedule.evaluate_tick(context)
        (request,) = tick.run_requests
        assert request.tags[LEDGER_TAG] == "0123456789ab"
        own = instance.create_run_for_job(job, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
        assert schedule.evaluate_tick(context).skip_message == "a run of maintain_shop_job is in progress"
        monkeypatch.setattr(maintain_jobs, "_why_lost", lambda _: "its process must have ended")
        assert schedule.evaluate_tick(context).run_requests
        statuses = {each.run_id: each.status for each in instance.get_runs()}
        assert statuses == {others.run_id: dg.DagsterRunStatus.STARTED, own.run_id: dg.DagsterRunStatus.FAILURE}


def test_a_lost_run_of_maintenance_is_ended_after_a_new_ledger_replaced_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the run would occupy one of the two places of maintenance in the run queue for ever."""
    made = definitions(tmp_path)
    FileLedger(make_config(tmp_path).destination_dir("shop")).update(lambda _: Ledger(ledger_id="0123456789ab"))
    schedule, job = made.resolve_schedule_def("optimize_shop_schedule"), made.resolve_job_def("maintain_shop_job")
    here, there = (
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(name), "__repository__").get_job_origin(job.name)
        for name in ("sales", "crm")
    )
    working, done = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS
    monkeypatch.setattr(maintain_jobs, "_why_lost", lambda _: "its process must have ended")
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.build_schedule_context(instance=instance) as context,
    ):
        lost, others, _ = (
            instance.create_run_for_job(job, tags={LEDGER_TAG: ledger}, status=status, remote_job_origin=origin)
            for ledger, status, origin in (
                ("e" * 12, working, here),
                ("f" * 12, working, there),
                ("0123456789ab", done, here),
            )
        )
        assert schedule.evaluate_tick(context).run_requests
        statuses = {each.run_id: each.status for each in instance.get_runs()}
    assert (statuses[lost.run_id], statuses[others.run_id]) == (dg.DagsterRunStatus.FAILURE, working)


@pytest.mark.found
def test_a_run_of_maintenance_that_a_person_started_gets_the_tag_of_its_ledger(
    tmp_path: Path, requests: list[MaintainRequest]
) -> None:
    """Test for defect 1113: other installations recognize by this tag that the run is not theirs."""
    made = definitions(tmp_path)
    FileLedger(make_config(tmp_path).destination_dir("shop")).update(lambda _: Ledger(ledger_id="0123456789ab"))
    with dg.DagsterInstance.ephemeral() as instance:
        result = made.resolve_job_def("maintain_shop_job").execute_in_process(instance=instance)
        assert result.success
        assert len(requests) == 1
        run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[LEDGER_TAG] == "0123456789ab"


@pytest.mark.found
def test_vacuum_is_requested_while_a_run_optimizes(tmp_path: Path) -> None:
    """Defect 1041: the schedules of OPTIMIZE and VACUUM tick in the same minute on Sundays. VACUUM was skipped each time, because the run
    of OPTIMIZE had just been requested.
    """
    made = definitions(tmp_path)
    optimize, vacuum = (made.resolve_schedule_def(f"{act}_shop_schedule") for act in ("optimize", "vacuum"))
    job = made.resolve_job_def("maintain_shop_job")
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.build_schedule_context(instance=instance) as context,
    ):
        for schedule in (optimize, vacuum):
            request: Any = schedule.evaluate_tick(context).run_requests
            instance.create_run_for_job(job, run_config=request[0].run_config)
            assert not schedule.evaluate_tick(context).run_requests, "a run already does this"


def test_destinations_begin_at_minutes_of_their_own_and_few_at_once() -> None:
    assert len({minute_of(f"shop{number}") for number in range(60)}) > 20
    settings = yaml.safe_load((Path(__file__).parents[3] / "conf" / "dagster.yaml").read_text())
    limits = {each["key"]: each["limit"] for each in settings["concurrency"]["runs"]["tag_concurrency_limits"]}
    assert (limits[maintain_jobs.TAG], limits[rows_job.TAG]) == (2, 2)


def test_maintenance_writes_over_what_the_run_left_that_it_waited_for(tmp_path: Path) -> None:
    """A maintenance waits for the end of another run and reads the table records only then. A record that it had read earlier would remove
    what the other run has recorded meanwhile.
    """
    config = make_config(tmp_path)
    directory = config.destination_dir("shop")
    owner = Owner(ledger_id="0123456789ab", destination="shop", table="shop.items")
    table = MaintainedTable(owner=owner, path="/lake/items", records=KeptRecords(LakeTables(directory)))
    LakeTables(directory).keep({"shop.orders": ("id", 1)})
    with maintain_run._only_writer_of(table, make_fake_ports(config).ports(), config, print) as own:
        own.records.keep("shop.items", TableRecord(table_id="other", version=2))
    assert LakeTables(directory).tables == {"shop.orders": ("id", 1), "shop.items": ("other", 2)}


@pytest.mark.found
@pytest.mark.parametrize(("deletes", "columns"), [("hard", {"id"}), ("soft", {"id", DELETED})])
def test_identity_maintenance_notices_that_a_program_removed_the_column_of_soft_deletes(
    tmp_path: Path, deletes: Literal["hard", "soft"], columns: set[str]
) -> None:
    """Maintenance did not know that Sluice needs the column `_sluice_deleted`. It stored the version of the table without this column. So
    the next merge added the column again, and the rows that the source had deleted counted as present.
    """
    config = make_config(tmp_path)
    tables = {"shop.orders": TableConfig(deletes=deletes)}
    shop = config.destinations["shop"].model_copy(update={"tables": tables})
    config = config.model_copy(update={"destinations": {"shop": shop}})
    write_tables(config.destination_dir("shop"))
    path, own = str(tmp_path / "lake/shop/orders"), {column.name: [1] for column in METADATA_COLUMNS}
    deltalake.write_deltalake(path, pa.table({"id": [1], **own}))
    deltalake.write_deltalake(path, pa.table({"id": [2], **own}), mode="append")
    remove = {"operation": "DROP COLUMNS", "operationParameters": {"columns": json.dumps([DELETED])}}
    commit = json.dumps({"commitInfo": {"timestamp": 1, **remove}})
    Path(path, "_delta_log", f"{2:020}.json").write_text(commit)
    LakeTables(config.destination_dir("shop")).keep({"shop.orders": (str(deltalake.DeltaTable(path).metadata().id), 1)})
    table = maintain_run._table(config, "shop", "shop.orders", "run")
    assert (table.path, set(table.columns)) == (path, columns)
    catch_up(table)
    record = table.records.get("shop.orders")
    assert record is not None
    assert record.version == (1 if deletes == "soft" else 2)
