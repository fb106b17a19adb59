"""Tests the job for acts on an engine (stop, start, restart, release) in Dagster's launchpad: its typed config, and what the run's page
shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.keeping import orders
from sluice.orchestration.run.instance_jobs import instance_job
from tests.orchestration.fix_location import make_config


def launched(root: Path, **config: Any) -> dg.ExecuteInProcessResult:
    job = instance_job(make_config(root))
    return job.execute_in_process(
        run_config={"ops": {"act_on_instance": {"config": {"wait_seconds": 0.0, **config}}}}, raise_on_error=False
    )


def test_admin_a_stop_from_the_launchpad_is_kept(tmp_path: Path) -> None:
    directory = make_config(tmp_path).destination_dir("shop")
    result = launched(tmp_path, act="stop")
    assert result.success
    assert orders.stopped(directory) is not None
    (failed,) = launched(tmp_path, act="restart", destination="shop").get_step_failure_events()
    assert "`sluice instance start shop` starts it" in str(failed.step_failure_data)
    assert not launched(tmp_path, act="start").success, "no engine process runs here"
    assert orders.stopped(directory) is None, "but it may run"


@pytest.mark.parametrize(
    ("act", "why"), [("release", "because no process runs its engine"), ("restart", "no engine process answered")]
)
def test_admin_what_cannot_be_done_fails_the_run_with_a_sentence(tmp_path: Path, act: str, why: str) -> None:
    (failed,) = launched(tmp_path, act=act).get_step_failure_events()
    assert why in str(failed.step_failure_data)
    assert orders.requested(make_config(tmp_path).destination_dir("shop")) is None, "nothing is left to be done later"


def test_admin_the_launchpad_refuses_what_is_no_act_and_no_destination(tmp_path: Path) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        launched(tmp_path, act="explode")
    with pytest.raises(dg.DagsterInvalidConfigError, match=r"destination not in enum type Literal\['shop'\] got web"):
        launched(tmp_path, act="stop", destination="web")
