"""An operator's decisions from Dagster's launchpad: what the run shows, what it saves, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.contracts import Consumer, StoppedTable
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.meta.forget_requests import forgets_requested
from sluice.cdc_engine.meta.resume_requests import requests
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.policy import Item, PendingChange
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles
from sluice.equality.values import TableResult, Verdict
from sluice.orchestration.base.table_catalog import delta_key
from sluice.orchestration.base.testing import fake_report
from sluice.orchestration.checks.equality import evaluation_of
from sluice.orchestration.run.decisions.job import REASON_TAG, decide_job
from sluice.orchestration.run.decisions.waiting import NOTHING, waiting
from sluice.orchestration.run.rows import job as rows_job
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.repair import Repaired, TableRepair
from sluice.orchestration.run.rows.request import RepairRequest
from tests.fix_ledgers import FileLedger
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

PLACE = Position(epoch=1, file="mysql-bin.000001", offset=4)
HELD = PendingChange(
    destination="shop",
    database="shop",
    table="orders",
    order_key=PLACE.order_key + 9,
    position="mysql-bin.000001:13@1",
    statement="ALTER TABLE orders RENAME COLUMN a TO b",
    items=(Item(kind="rename", what="rename a to b"),),
    choices=("apply", "new_column"),
)
STOPS = {
    "orders": (TableState.DDL_HELD, HELD.reason),
    "audit": (TableState.SCHEMA_MISMATCH, "it differs"),
    "lost": (TableState.TABLE_MISSING, "it is gone"),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a destination with a pending change, a table that stopped for another reason, one for its Delta table, and a consumer."""
    made = make_config(tmp_path).destination_dir("shop")
    made.mkdir(parents=True)
    for table, (state, reason) in STOPS.items():
        stop = StoppedTable(database="shop", table=table, state=state, reason=reason, position=PLACE)
        FileLedger(made).update(lambda ledger, stop=stop: ledger.stop_table(stop))  # type: ignore[misc]
    ReviewFiles(made).note(HELD)
    return made


def launched(root: Path, **config: Any) -> tuple[dg.ExecuteInProcessResult, str, dict[str, str]]:
    """Returns the run's result, what it says, and its tags."""
    settings = make_config(root)
    job = decide_job(settings, make_fake_ports(settings).ports())
    with dg.instance_for_test() as instance:
        result = job.execute_in_process(
            run_config={"ops": {"act_on_decision": {"config": config}}}, raise_on_error=False, instance=instance
        )
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        if not result.success:
            (failed,) = result.get_step_failure_events()
            return result, str(failed.step_failure_data), dict(run.tags)
        (output,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
        metadata: Any = output.step_output_data.metadata
        return result, str(metadata["told" if "told" in metadata else "found"].value), dict(run.tags)


def test_nothing_but_the_plans_is_shown_by_default(directory: Path, tmp_path: Path) -> None:
    result, told, _ = launched(tmp_path)
    assert result.success
    for words in ("shop.orders", HELD.statement, "new_column"):
        assert words in told
    assert requests(directory) == ()


@pytest.mark.found
def test_what_each_decision_would_do_is_shown_by_default(directory: Path, tmp_path: Path) -> None:
    """Number 30: the launchpad showed schema changes only, and not what resume, repair and forget would do."""
    FileLedger(directory).update(lambda ledger: ledger.with_consumer(Consumer(client_id=1001, filter="", cursor=PLACE)))
    write_tables(directory)
    config = make_config(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        for table, verdict in (("shop.orders", Verdict.DIFFERENT), ("shop.items", Verdict.EQUAL)):
            found = evaluation_of(config, "shop", TableResult(table=table, verdict=verdict))
            instance.report_runless_asset_event(found)
        told = waiting(instance, directory, "shop")
    for words in (
        "## Schema changes (`act: approve`)",
        f"**shop.audit** (SCHEMA_MISMATCH): it differs. resume continues from its stop at {PLACE}",
        "**shop.lost** (TABLE_MISSING): it is gone. resume is refused here: `sluice lake accept shop shop.lost`",
        "**shop.orders**: 0 rows differ. repair compares again",
        f"- 1001: forget deletes its cursor ({PLACE})",
    ):
        assert words in told
    assert "shop.items" not in told


def test_where_nothing_waits_one_sentence_says_so(tmp_path: Path) -> None:
    directory = make_config(tmp_path).destination_dir("shop")
    with dg.DagsterInstance.ephemeral() as instance:
        assert waiting(instance, directory, "shop") == NOTHING


@pytest.fixture
def repairs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RepairRequest]]:
    """What is compared and repaired, instead of its being done."""
    found: list[tuple[str, RepairRequest]] = []
    planned = (
        TableRepair(result=TableResult(table="shop.orders", verdict=Verdict.DIFFERENT), refused="it has no key"),
    )

    def plan(_config: object, request: RepairRequest) -> tuple[TableRepair, ...]:
        found.append(("plan", request))
        return planned

    def run(run: RowsRun, request: RepairRequest, _plan: object) -> Repaired:
        found.append(("repair", request))
        run.listener.done(fake_report("shop.orders"))
        return Repaired(plan=planned)

    monkeypatch.setattr(rows_job, "plan_repair", plan)
    monkeypatch.setattr(rows_job, "run_repair", run)
    return found


def test_a_plan_of_a_repair_is_shown_and_a_repair_needs_a_reason(
    directory: Path, tmp_path: Path, repairs: list[tuple[str, RepairRequest]]
) -> None:
    request = RepairRequest(destination="shop", tables=("shop.orders",))
    result, told, tags = launched(tmp_path, act="plan_repair", table="shop.orders")
    assert result.success, told
    assert told == "- shop.orders: it has no key"
    assert (repairs, REASON_TAG in tags) == ([("plan", request)], False)
    refused, told, _ = launched(tmp_path, act="repair", table="shop.orders")
    assert (refused.success, len(repairs)) == (False, 1)
    assert "`reason` is empty" in told
    result, _, tags = launched(tmp_path, act="repair", reason="a lost file")
    assert result.success
    assert repairs[1:] == [(act, RepairRequest(destination="shop")) for act in ("plan", "repair")]
    assert tags[REASON_TAG] == "a lost file"
    assert result.asset_materializations_for_node("act_on_decision")[0].asset_key == delta_key("shop", "shop.orders")


def test_a_repair_that_fails_has_its_reason_as_a_tag(
    directory: Path,
    tmp_path: Path,
    repairs: list[tuple[str, RepairRequest]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*_: Any, **__: Any) -> Repaired:
        raise ActRefusedError("the stream began anew meanwhile; ask again")

    monkeypatch.setattr(rows_job, "run_repair", run)
    result, told, tags = launched(tmp_path, act="repair", reason="a lost file")
    assert not result.success
    assert "began anew" in told
    assert (tags[REASON_TAG], [act for act, _ in repairs]) == ("a lost file", ["plan"])


def test_an_approval_is_kept_and_its_reason_is_a_tag_of_the_run(directory: Path, tmp_path: Path) -> None:
    result, told, tags = launched(
        tmp_path, act="approve", table="shop.orders", plan="new_column", statement=HELD.statement, reason="as agreed"
    )
    assert result.success, told
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == "new_column"
    assert [each.table for each in requests(directory)] == ["orders"]
    assert tags[REASON_TAG] == "as agreed"


def test_a_stopped_table_is_resumed(directory: Path, tmp_path: Path) -> None:
    assert launched(tmp_path, act="resume", table="shop.audit", reason="fixed")[0].success
    assert [each.table for each in requests(directory)] == ["audit"]


def test_a_consumer_is_forgotten(directory: Path, tmp_path: Path) -> None:
    kept = Consumer(client_id=1001, filter="", cursor=PLACE)
    FileLedger(directory).update(lambda ledger: ledger.with_consumer(kept))
    result, told, _ = launched(tmp_path, act="forget", consumer=1001, reason="it moved")
    assert result.success, told
    assert forgets_requested(directory) == (1001,)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"act": "resume", "table": "shop.audit"}, "`reason` is empty"),
        ({"act": "approve", "table": "shop.orders", "plan": "keep", "reason": "r"}, "choose one of apply, new_column"),
        ({"act": "approve", "table": "shop.orders", "statement": "ALTER", "reason": "r"}, "another statement waits"),
        ({"act": "approve", "table": "shop.audit", "reason": "r"}, "sluice schema resume shop shop.audit"),
        ({"act": "resume", "table": "shop.calm", "reason": "r"}, "has not stopped"),
        ({"act": "resume", "table": "shop.lost", "reason": "r"}, "looks at that table first"),
        ({"act": "forget", "consumer": 7, "reason": "r"}, "has no consumer 7"),
    ],
)
def test_what_cannot_be_decided_changes_nothing(
    directory: Path, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    result, told, tags = launched(tmp_path, **config)
    assert not result.success
    assert words in told
    assert REASON_TAG not in tags
    assert requests(directory) == ()
    assert forgets_requested(directory) == ()
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == ""
