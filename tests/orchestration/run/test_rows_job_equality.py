"""Tests a repair by the job of operations on rows as Dagster shows it: its events, and how a run fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.errors import ActRefusedError
from sluice.equality.canonical import Canonical
from sluice.equality.scope import Scope
from sluice.equality.tables import DifferingKey
from sluice.equality.values import TableResult, Verdict
from sluice.orchestration.base.table_catalog import delta_key, source_key
from sluice.orchestration.base.testing import fake_report
from sluice.orchestration.checks.equality import EQUAL_CHECK
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run.rows import job as rows_job
from sluice.orchestration.run.rows.job import JOB, STEP
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.repair import Repaired, TableRepair
from sluice.orchestration.run.rows.request import RepairRequest
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

KEY = Canonical(name="id", type="BIGINT", select="`id`", from_text="{}", from_delta="{}")
FOUND = TableRepair(
    result=TableResult(table="shop.orders", verdict=Verdict.DIFFERENT),
    scope=Scope(
        (KEY,), {(7,): DifferingKey(in_source=True, lake_rows=0), (8,): DifferingKey(in_source=False, lake_rows=1)}
    ),
)
REPAIR = {"operation": "repair"}
ODD = TableRepair(result=TableResult(table="shop.odd", verdict=Verdict.DIFFERENT), refused="it has no key")


@pytest.fixture
def job(tmp_path: Path) -> dg.JobDefinition:
    config = make_config(tmp_path)
    write_tables(config.destination_dir("shop"))
    return build_definitions(config, make_fake_ports(config).ports()).resolve_job_def(JOB)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[RepairRequest]:
    """Records what the job requests, without doing it."""
    found: list[RepairRequest] = []

    def plan(_config: object, request: RepairRequest) -> tuple[TableRepair, ...]:
        found.append(request)
        return FOUND, ODD

    def run(run: RowsRun, _request: RepairRequest, planned: tuple[TableRepair, ...]) -> Repaired:
        assert run.run
        assert run.wait_seconds > 0
        equal = TableResult(table="shop.orders", verdict=Verdict.EQUAL)
        run.listener.done(fake_report("shop.orders"))
        run.listener.checked(equal)
        return Repaired(plan=planned, refused={"shop.odd": "it has no key"}, after=(equal,))

    monkeypatch.setattr(rows_job, "plan_repair", plan)
    monkeypatch.setattr(rows_job, "run_repair", run)
    return found


def test_a_repair_ends_with_the_checks_of_what_it_repaired_equality(
    job: dg.JobDefinition, requests: list[RepairRequest]
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        config = {**REPAIR, "tables": ["shop.orders"], "settle_seconds": 9.0}
        result = job.execute_in_process(run_config={"ops": {STEP: {"config": config}}}, instance=instance)
        assert result.success
        assert result.asset_materializations_for_node(STEP)[0].asset_key == delta_key("shop", "shop.orders")
        key = dg.AssetCheckKey(source_key("shop", "shop.orders"), EQUAL_CHECK)
        (kept,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
    assert requests == [RepairRequest(destination="shop", tables=("shop.orders",), settle_seconds=9.0)]
    assert kept.status.value == "SUCCEEDED"
    (handled,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
    reported: Any = handled.step_output_data.metadata
    assert reported["found"].value == "- shop.orders: 1 missing, 1 surplus\n- shop.odd: it has no key"
    assert (reported["repaired_tables"].value, reported["equal_again"].value) == (0, 1)
    assert reported["left_out"].value == {"shop.odd": "it has no key"}


def test_a_plan_of_a_repair_changes_nothing_equality(job: dg.JobDefinition, requests: list[RepairRequest]) -> None:
    result = job.execute_in_process(run_config={"ops": {STEP: {"config": {**REPAIR, "only_plan": True}}}})
    assert result.success
    assert len(requests) == 1
    assert not result.asset_materializations_for_node(STEP)


def test_a_repair_that_cannot_be_fails_with_its_sentence_equality(
    job: dg.JobDefinition, requests: list[RepairRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> Repaired:
        raise ActRefusedError("the stream began anew meanwhile; request it again")

    monkeypatch.setattr(rows_job, "run_repair", run)
    result = job.execute_in_process(run_config={"ops": {STEP: {"config": REPAIR}}}, raise_on_error=False)
    assert not result.success
    assert requests
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "began anew" in str(failed.step_failure_data.user_failure_data)
