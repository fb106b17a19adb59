"""Tests the job and the schedule that limit Dagster's storage, as the definitions have them."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.retention import stored_runs
from sluice.orchestration.retention.jobs import JOB
from sluice.orchestration.retention.prune import prune
from sluice.orchestration.retention.rules import EndedRun, RunRetention
from tests.orchestration.fix_location import make_config, make_fake_ports
from tests.orchestration.retention.fix_old_runs import FEW_RUNS, make_old_home, open_instance

pytestmark = pytest.mark.scale


def test_the_job_of_the_definitions_removes_runs_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_runs, "NEWEST_RUNS_KEPT", 3)
    make_old_home(tmp_path / "home", FEW_RUNS, one_table=False)
    config = make_config(tmp_path)
    job = build_definitions(config, make_fake_ports(config).ports()).resolve_job_def(JOB)
    with open_instance(tmp_path / "home") as instance:
        done = job.execute_in_process(instance=instance)
        assert done.success
        (output,) = [each for each in done.all_events if each.event_type is dg.DagsterEventType.STEP_OUTPUT]
        removed = output.step_output_data.metadata["runs"].value
        assert removed == FEW_RUNS + 2 - len(instance.get_runs())
        assert removed > FEW_RUNS / 2


def test_runs_are_found_by_the_mark_that_dagster_gives_them(tmp_path: Path) -> None:
    """Dagster marks runs with a tag of their code location. For a run that a sensor or a person started, only the storage has this tag."""
    location = InProcessCodeLocationOrigin(LoadableTargetOrigin(python_file="defs.py"), location_name="sluice")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), "merge_shop_job")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        run = dg.DagsterRun(job_name="merge_shop_job", remote_job_origin=origin)
        instance.add_run(run)
        instance.report_run_failed(run)
        assert [[each.run_id for each in page] for page in _ended(instance, origin.repository_origin.get_label())] == [
            [run.run_id]
        ]
        assert not _ended(instance, "")
        assert not _ended(instance, "__repository__@other")


@pytest.mark.found
def test_the_newest_runs_of_a_job_stay_although_another_code_location_has_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1114: two code locations can have jobs of the same names. If the other location had the newest runs of a job, `prune_dagster`
    kept none of its own, so that ticks could not count the failures any more.
    """
    monkeypatch.setattr(stored_runs, "NEWEST_RUNS_KEPT", 2)
    here, there = (
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(name), "__repository__") for name in ("sales", "crm")
    )
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        runs = [
            dg.DagsterRun(job_name="merge_shop_job", remote_job_origin=location.get_job_origin("merge_shop_job"))
            for location in (here, here, here, there, there, there)
        ]
        for run in runs:
            instance.add_run(run)
            instance.report_run_failed(run)
        after = time.time() + 1000 * 3600.0
        prune(instance, RunRetention(keep_hours=1), label=here.get_label(), destinations=["shop"], clock=lambda: after)
        assert {each.run_id for each in instance.get_runs()} == {run.run_id for run in runs[1:]}


def _ended(instance: dg.DagsterInstance, label: str) -> list[list[EndedRun]]:
    storage = instance.run_storage
    assert isinstance(storage, SqlRunStorage)
    return list(stored_runs.StoredRuns(storage, label).ended())


def test_the_schedule_runs_until_an_operator_switches_it_off(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    definitions = build_definitions(config, make_fake_ports(config).ports())
    assert definitions.resolve_schedule_def(f"{JOB}_schedule").default_status.value == "RUNNING"
