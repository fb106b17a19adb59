"""An operator's decisions from Dagster's launchpad: what the run shows, what it saves, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.contracts import Consumer, StoppedTable
from sluice.cdc_engine.meta.forget_requests import forgets_requested
from sluice.cdc_engine.meta.resume_requests import requests
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.policy import Item, PendingChange
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles
from sluice.orchestration.run.decisions.job import REASON_TAG, decide_job
from tests.fix_ledgers import FileLedger
from tests.orchestration.fix_location import make_config

PLACE = Position(epoch=1, file="mysql-bin.000001", offset=4)
HELD = PendingChange(
    destination="shop",
    database="shop",
    table="orders",
    order_key=PLACE.order_key + 9,
    place="mysql-bin.000001:13@1",
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
    job = decide_job(make_config(root))
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
        return result, str(output.step_output_data.metadata["told"].value), dict(run.tags)


def test_nothing_but_the_plans_is_shown_by_default(directory: Path, tmp_path: Path) -> None:
    result, told, _ = launched(tmp_path)
    assert result.success
    for words in ("shop.orders", HELD.statement, "new_column"):
        assert words in told
    assert requests(directory) == ()


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
