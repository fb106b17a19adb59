"""Tests that failures in a row of the runs of each kind are in the engine's status. From there, `sluice status` and the check of the
engine's asset show them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus as S
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.status.report import find_problems, read_destination
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.testing import LEDGER_ID, position
from sluice.orchestration.checks.stopped import read_failures
from sluice.orchestration.run_kinds import run_kinds
from sluice.orchestration.sensor.failing_runs import FAILED_MIN, LOOK_SECONDS, FailingRuns
from sluice.orchestration.sensor.runs import OTHER_RUNS_LOOKED_AT, RunStore, label_of
from tests.fix_ledgers import FileLedger
from tests.orchestration.sensor.test_tick import JOB, Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr("sluice.orchestration.sensor.tick.TICK_SECONDS_MAX", 0.4)
    monkeypatch.setattr("sluice.orchestration.sensor.failing_runs.LOOK_SECONDS", 0.0)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Shop(tmp_path, instance)


def ended(
    shop: Shop,
    job: str,
    status: S,
    config: dict[str, Any] | None = None,
    reason: str = "",
    *,
    location: RemoteRepositoryOrigin | None = None,
) -> None:
    """Adds a run of a job to the storage, as Dagster would record it. `location` is the code location that launched the run."""
    run = shop.instance.create_run_for_job(
        shop.defs.resolve_job_def(job),
        run_config=config or {},
        status=S.STARTED,
        remote_job_origin=location.get_job_origin(job) if location is not None else None,
    )
    if status is S.FAILURE:
        shop.instance.report_run_failed(run, reason)
    elif status is S.SUCCESS:
        shop.succeed(run)
    elif status is S.CANCELED:
        shop.instance.report_run_canceled(run)


def reported(shop: Shop) -> tuple[str, ...]:
    """Returns what a tick reports to the engine."""
    shop.tick()
    return shop.engine.lake


def begin_snapshot(directory: Path) -> None:
    FileLedger(directory).update(lambda _: Ledger(ledger_id=LEDGER_ID, cursor=position(4)))
    LakeTables(directory).keep({"shop.orders": ("id", 1)})
    SnapshotRecords(directory).begin(wanted("shop.orders", position(4), time.time()))


@pytest.mark.found
def test_fault_snapshot_runs_that_fail_reach_status_and_the_asset(shop: Shop) -> None:
    """Defect 8: `status` did not show failing snapshot runs. After six failures in a row, it printed "is being read" and exited with 0."""
    directory = shop.config.destination_dir("shop")
    begin_snapshot(directory)
    job = shop.defs.resolve_job_def("snapshot_shop_job")
    for _ in range(2):
        assert reported(shop) == (), "one failure is often a killed process"
        assert not job.execute_in_process(instance=shop.instance, raise_on_error=False).success
    (trouble,) = reported(shop)
    assert trouble.startswith("2 runs in a row that read the rows of tables failed, the newest (")
    assert "of snapshot_shop_job) with: " in trouble
    assert "sluice snapshot cancel shop" in trouble
    write_status(
        directory / "status.json",
        EngineStatus(state="RUNNING", troubles=shop.engine.lake, updated_at_us=time.time_ns() // 1000),
    )
    assert f"shop: {trouble}" in find_problems([], [read_destination(directory, "shop", time.time())])
    assert read_failures(directory, time.time())[""] == f"TROUBLED: {trouble}"
    SnapshotRecords(directory).update("shop.orders", lambda now: now.canceled())
    assert reported(shop) == (), "nobody waits for its rows any more"


OF_SHOP = {"destination": "shop"}
REPAIR = {"operation": "repair"}


@pytest.mark.found
@pytest.mark.parametrize(
    ("job", "config"),
    [
        ("operate_on_rows", {"ops": {"rows": {"config": {**OF_SHOP, **REPAIR}}}}),
        ("operate_on_rows", {"ops": {"rows": {"config": REPAIR}}}),
        ("operate_on_rows", {"ops": {"rows": {"config": {**OF_SHOP, "from_time": "-10m"}}}}),
        ("backfill_shop_by_hour", {}),
        ("maintain_shop_job", {}),
        ("equal_shop_job", {}),
        ("prune_dagster", {}),
    ],
)
def test_fault_every_kind_of_run_that_fails_twice_in_a_row_is_reported_until_one_succeeds(
    shop: Shop, job: str, config: dict[str, Any]
) -> None:
    """Defect 8: if runs failed several times in a row, only failures of merge runs were reported."""
    ended(shop, job, S.FAILURE, config, "the disk is full.")
    assert reported(shop) == ()
    ended(shop, job, S.STARTED, config)
    ended(shop, job, S.FAILURE, config, "the disk is full.")
    ended(shop, job, S.STARTED, config)
    (trouble,) = reported(shop)
    assert trouble.startswith("2 runs in a row that ")
    assert f" of {job}) with: the disk is full; " in trouble
    ended(shop, job, S.FAILURE, config, "no Spark answers")
    assert reported(shop)[0].startswith("3 runs in a row that ")
    ended(shop, job, S.CANCELED, config)
    assert reported(shop) == ()
    for status in (S.FAILURE, S.FAILURE, S.SUCCESS):
        ended(shop, job, status, config)
    assert reported(shop) == ()


def test_runs_of_another_destination_are_not_this_ones(shop: Shop) -> None:
    store, kinds = RunStore(shop.instance, JOB), run_kinds(shop.config, "shop")
    for _ in range(2):
        ended(shop, "operate_on_rows", S.FAILURE, {"ops": {"rows": {"config": REPAIR}}})
    assert FailingRuns("shop", kinds, only_one=True).troubles(store)
    assert not FailingRuns("shop", kinds, only_one=False).troubles(store), "it names none, and there are several"
    assert not FailingRuns("billing", kinds, only_one=False).troubles(store)


@pytest.mark.found
def test_runs_of_another_code_location_are_not_this_ones(shop: Shop) -> None:
    """Defect 1043: two code locations have jobs of the same names. Failed repairs of one location were reported by the other, and a success
    there hid failures here. Ticks also ended runs of the other location.
    """
    here, there = (
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(name), "__repository__") for name in ("sales", "crm")
    )
    context = dg.SensorEvaluationContext(
        instance_ref=None,
        instance=shop.instance,
        repository_name="__repository__",
        code_location_origin=here.code_location_origin,
    )
    runs, other = (RunStore(shop.instance, JOB, label) for label in (label_of(context), there.get_label()))
    config = {"ops": {"rows": {"config": REPAIR}}}
    for _ in range(2):
        ended(shop, "operate_on_rows", S.FAILURE, config, location=here)
    ended(shop, "operate_on_rows", S.SUCCESS, config, location=there)
    kinds = run_kinds(shop.config, "shop")
    assert FailingRuns("shop", kinds).troubles(runs)
    assert not FailingRuns("shop", kinds).troubles(other)
    ended(shop, JOB, S.STARTED, location=there)
    assert [len(each.open_runs()) for each in (runs, other)] == [0, 1]


@pytest.mark.found
def test_many_runs_of_another_code_location_do_not_hide_the_own_ones(shop: Shop) -> None:
    """Defect 1115: the newest runs of a job were read first, and then those of other code locations were left out. If the other location
    had the newest ten runs, failures were not reported, and batches that failed did not wait.
    """
    here, there = (
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(name), "__repository__") for name in ("sales", "crm")
    )
    config = {"ops": {"rows": {"config": REPAIR}}}
    for location, runs in ((here, FAILED_MIN), (there, OTHER_RUNS_LOOKED_AT)):
        for _ in range(runs):
            ended(shop, "operate_on_rows", S.FAILURE, config, location=location)
    store = RunStore(shop.instance, JOB, here.get_label())
    (trouble,) = FailingRuns("shop", run_kinds(shop.config, "shop")).troubles(store)
    assert trouble.startswith(f"{FAILED_MIN} runs in a row that repair rows failed")


@pytest.mark.found
def test_fault_a_lost_run_is_ended_after_its_code_location_was_renamed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1116: a merge run whose process had died stayed open for ever if the code location was renamed meanwhile. Its batch waited for
    an hour, and the run queue started no other merge run of the destination.
    """
    clock = [1000.0]

    def read() -> float:
        clock[0] += 0.05
        return clock[0]

    monkeypatch.setattr("sluice.orchestration.sensor.tick.time.monotonic", read)
    FileLedger(shop.config.destination_dir("shop")).update(lambda _: Ledger(ledger_id=LEDGER_ID))
    before, now, there = (
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(name), "__repository__")
        for name in ("sales", "renamed", "crm")
    )
    shop.engine.capture(5)
    assert shop.engine.hand_out(0) is not None
    lost = BatchReference.of("shop", shop.head())
    for location, reference in ((before, lost), (there, dataclasses.replace(lost, ledger="f" * 12))):
        shop.instance.create_run_for_job(
            shop.defs.resolve_job_def(JOB),
            tags=reference.to_tags(),
            status=S.STARTED,
            remote_job_origin=location.get_job_origin(JOB),
        )
    context = dg.SensorEvaluationContext(
        instance_ref=None,
        instance=shop.instance,
        repository_name=now.repository_name,
        repository_def=shop.defs.get_repository_def(),
        code_location_origin=now.code_location_origin,
    )
    for seconds in (0.0, 31.0):
        clock[0] += seconds
        shop.sensor.evaluate_tick(context)
    others, ours = shop.instance.get_runs()
    assert (ours.status, others.status) == (S.FAILURE, S.STARTED)
    assert shop.engine.rolled_back == [1]


def test_backfills_that_succeed_do_not_hide_repairs_that_fail(shop: Shop) -> None:
    repair, backfill = ({"ops": {"rows": {"config": config}}} for config in (REPAIR, {"operation": "backfill"}))
    for _ in range(2):
        ended(shop, "operate_on_rows", S.FAILURE, repair, "the disk is full")
        ended(shop, "operate_on_rows", S.SUCCESS, backfill)
    (trouble,) = reported(shop)
    assert trouble.startswith("2 runs in a row that repair rows failed")
    assert "start the job operate_on_rows (`operation: repair`) again" in trouble
    ended(shop, "operate_on_rows", S.SUCCESS, repair)
    assert reported(shop) == ()


def test_a_look_is_taken_every_few_seconds(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    clock = [100.0]
    failing = FailingRuns("shop", run_kinds(shop.config, "shop"), clock=lambda: clock[0])
    store = RunStore(shop.instance, JOB)
    assert not failing.troubles(store)
    for _ in range(2):
        ended(shop, "maintain_shop_job", S.FAILURE)
    assert not failing.troubles(store)
    clock[0] += LOOK_SECONDS
    assert failing.troubles(store)


def test_every_job_of_a_destination_is_a_kind(shop: Shop) -> None:
    """A new job must have a kind, so that its failures are reported. Otherwise, it must be in the list below, with the reason."""
    jobs = {each.name for each in shop.defs.resolve_all_job_defs()} - {"__ASSET_JOB"}
    # Failures of `JOB` are counted per batch instead. A person starts each of the other jobs and sees the result.
    others = {JOB, "operate_engine", "decide", "catch_up"}
    assert jobs - others == {kind.job for kind in run_kinds(shop.config, "shop")}
