"""Tests the job `catch_up`, which succeeds when nothing is missing, and otherwise fails with a sentence. tests/acts/test_catch_up.py tests
its rules.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.acts.catch_up import Progress
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.position import Position
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run import catch_up_job as module
from sluice.orchestration.run.catch_up_job import catch_up_job
from tests.orchestration.fix_location import make_config, make_fake_ports

FACTS = ServerFacts(version="8.0.31", mariadb=False, server_uuid="", gtid_enabled=False, file="b.000007", offset=500)
DONE = Progress(state="RUNNING", cursor=Position(epoch=1, file="b.000007", offset=500))


def launched(root: Path, monkeypatch: pytest.MonkeyPatch, looks: list[Progress], **config: Any) -> Any:
    found = iter(looks)
    monkeypatch.setattr(module, "source_facts", lambda _: FACTS)
    monkeypatch.setattr("sluice.cdc_engine.acts.catch_up.STOPPED_SECONDS_MIN", 0.0)
    monkeypatch.setattr(module, "read_progress", lambda *_: next(found))
    job = catch_up_job(make_config(root))
    return job.execute_in_process(
        run_config={"ops": {"wait_until_caught_up": {"config": config}}}, raise_on_error=False
    )


def test_the_run_succeeds_once_everything_is_acked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = launched(tmp_path, monkeypatch, [dataclasses.replace(DONE, ticked=False), DONE])
    assert result.success
    (done,) = [each for each in result.all_events if each.event_type == dg.DagsterEventType.STEP_OUTPUT]
    assert done.event_specific_data.metadata["end"].value == "b.000007:500"


@pytest.mark.parametrize(
    ("progress", "seconds_max", "why"),
    [
        (dataclasses.replace(DONE, stopped=("shop.t",)), 0.0, "except the changes of the stopped tables shop.t"),
        (dataclasses.replace(DONE, cursor=None), 1e-9, "shop has not caught up within 1e-09 s: nothing is acked yet; the wait"),
    ],
)  # fmt: skip
def test_the_run_fails_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress, seconds_max: float, why: str
) -> None:
    (failed,) = launched(tmp_path, monkeypatch, [progress], seconds_max=seconds_max).get_step_failure_events()
    assert why in str(failed.step_failure_data)


def test_a_conf_without_destinations_has_no_jobs(tmp_path: Path) -> None:
    config = make_config(tmp_path).model_copy(update={"destinations": {}})
    assert list(build_definitions(config, make_fake_ports(config).ports()).resolve_all_job_defs()) == []
