"""Tests the job and the schedule that limit Dagster's storage, as the definitions have them."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.retention import stored_runs
from sluice.orchestration.retention.jobs import JOB
from sluice.orchestration.retention.rules import EndedRun
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


def _ended(instance: dg.DagsterInstance, label: str) -> list[list[EndedRun]]:
    storage = instance.run_storage
    assert isinstance(storage, SqlRunStorage)
    return list(stored_runs.StoredRuns(storage, label).ended())


def test_the_schedule_runs_until_an_operator_switches_it_off(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    definitions = build_definitions(config, make_fake_ports(config).ports())
    assert definitions.resolve_schedule_def(f"{JOB}_schedule").default_status.value == "RUNNING"
