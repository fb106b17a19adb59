"""Tests an operator's decisions from Dagster's launchpad: what the run shows, what it saves, and what is refused."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from sluice.cdc_engine.acts import stopped_table
from sluice.cdc_engine.config import MetaConfig, SluiceConfig
from sluice.cdc_engine.contracts import Consumer, StoppedTable
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.meta.forget_requests import forgets_requested
from sluice.cdc_engine.meta.resume_requests import requests
from sluice.cdc_engine.meta.stored_ledger import StoredLedger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.policy import Item, PendingChange
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles
from sluice.equality.values import TableResult, Verdict
from sluice.orchestration.base.table_catalog import delta_key
from sluice.orchestration.base.testing import fake_report
from sluice.orchestration.checks.equality import evaluation_of
from sluice.orchestration.run.decisions.job import REASON_TAG, Decision, decide_job, problem_of
from sluice.orchestration.run.decisions.launchpad import Launchpad, config_text
from sluice.orchestration.run.decisions.waiting import NOTHING, waiting
from sluice.orchestration.run.rows import job as rows_job
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.repair import Repaired, TableRepair
from sluice.orchestration.run.rows.request import RepairRequest
from tests.fix_ledgers import FileLedger
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

POSITION = Position(epoch=1, file="mysql-bin.000001", offset=4)
HELD = PendingChange(
    destination="shop",
    database="shop",
    table="orders",
    order_key=POSITION.order_key + 9,
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
    """Returns the directory of a destination with a pending change, a stopped table, a table that stopped because of its Delta table, and
    a consumer.
    """
    made = make_config(tmp_path).destination_dir("shop")
    made.mkdir(parents=True)
    for table, (state, reason) in STOPS.items():
        stop = StoppedTable(database="shop", table=table, state=state, reason=reason, position=POSITION)
        FileLedger(made).update(lambda ledger, stop=stop: ledger.stop_table(stop))  # type: ignore[misc]
    ReviewFiles(made).note(HELD)
    return made


def launched(root: Path, **config: Any) -> tuple[dg.ExecuteInProcessResult, str, dict[str, str]]:
    """Returns the run's result, its report or error, and its tags."""
    return launched_with(make_config(root), **config)


def launched_with(settings: SluiceConfig, **config: Any) -> tuple[dg.ExecuteInProcessResult, str, dict[str, str]]:
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
        return result, str(metadata["result" if "result" in metadata else "found"].value), dict(run.tags)


def test_nothing_but_the_plans_is_shown_by_default(directory: Path, tmp_path: Path) -> None:
    result, reported, _ = launched(tmp_path)
    assert result.success
    for words in ("shop.orders", HELD.statement, "new_column"):
        assert words in reported
    assert requests(directory) == ()


@pytest.mark.found
def test_what_each_decision_would_do_is_shown_by_default(directory: Path, tmp_path: Path) -> None:
    """Defect 30: the launchpad showed only schema changes, and not what resume, repair and forget would do."""
    FileLedger(directory).update(
        lambda ledger: ledger.with_consumer(Consumer(client_id=1001, filter="", cursor=POSITION))
    )
    write_tables(directory)
    config = make_config(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        for table, verdict in (("shop.orders", Verdict.DIFFERENT), ("shop.items", Verdict.EQUAL)):
            found = evaluation_of(config, "shop", TableResult(table=table, verdict=verdict))
            instance.report_runless_asset_event(found)
        reported = waiting(instance, directory, "shop", Launchpad())
    for words in (
        "## Schema changes (`act: approve`)",
        f"**`shop.audit`** (SCHEMA_MISMATCH): it differs. resume continues from the position of its stop, {POSITION}",
        "**`shop.lost`** (TABLE_MISSING): it is gone. resume is refused here: `sluice lake accept shop shop.lost`",
        "**`shop.orders`**: 0 rows differ. plan_repair changes nothing; repair compares again",
        f"- 1001: forget deletes its cursor ({POSITION})",
    ):
        assert words in reported
    assert "shop.items" not in reported


def test_where_nothing_waits_one_sentence_says_so(tmp_path: Path) -> None:
    directory = make_config(tmp_path).destination_dir("shop")
    with dg.DagsterInstance.ephemeral() as instance:
        assert waiting(instance, directory, "shop", Launchpad()) == NOTHING


@pytest.fixture
def repairs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RepairRequest]]:
    """Records what is compared and repaired, without doing it."""
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
    result, reported, tags = launched(tmp_path, act="plan_repair", table="shop.orders")
    assert result.success, reported
    assert reported == "- shop.orders: it has no key"
    assert (repairs, REASON_TAG in tags) == ([("plan", request)], False)
    refused, reported, _ = launched(tmp_path, act="repair", table="shop.orders")
    assert (refused.success, len(repairs)) == (False, 1)
    assert "`reason` is empty" in reported
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
        raise ActRefusedError("the stream began anew meanwhile; request it again")

    monkeypatch.setattr(rows_job, "run_repair", run)
    result, reported, tags = launched(tmp_path, act="repair", reason="a lost file")
    assert not result.success
    assert "began anew" in reported
    assert (tags[REASON_TAG], [act for act, _ in repairs]) == ("a lost file", ["plan"])


def test_an_approval_is_kept_and_its_reason_is_a_tag_of_the_run(directory: Path, tmp_path: Path) -> None:
    result, reported, tags = launched(
        tmp_path, act="approve", table="shop.orders", plan="new_column", position=HELD.position, reason="as agreed"
    )
    assert result.success, reported
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == "new_column"
    assert [each.table for each in requests(directory)] == ["orders"]
    assert tags[REASON_TAG] == "as agreed"


def test_a_stopped_table_is_resumed(directory: Path, tmp_path: Path) -> None:
    assert launched(tmp_path, act="resume", table="shop.audit", position=str(POSITION), reason="fixed")[0].success
    assert [each.table for each in requests(directory)] == ["audit"]


def test_a_consumer_is_forgotten(directory: Path, tmp_path: Path) -> None:
    kept = Consumer(client_id=1001, filter="", cursor=POSITION)
    FileLedger(directory).update(lambda ledger: ledger.with_consumer(kept))
    result, reported, _ = launched(tmp_path, act="forget", consumer=1001, reason="it moved")
    assert result.success, reported
    assert forgets_requested(directory) == (1001,)


APPROVE = {"act": "approve", "table": "shop.orders", "position": HELD.position, "plan": "apply", "reason": "r"}
RESUME = {"act": "resume", "table": "shop.audit", "position": str(POSITION), "reason": "r"}
FORGET = {"act": "forget", "consumer": 7, "reason": "r"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**RESUME, "reason": " "}, "`reason` is empty"),
        ({**RESUME, "reason": "fixed\nsluice/destination: other"}, "`reason` has a line break"),
        ({**APPROVE, "reason": "r\x00"}, "`reason` has a line break"),
        ({**APPROVE, "plan": ""}, "`plan` is empty"),
        ({**APPROVE, "position": ""}, "`position` is empty"),
        ({**APPROVE, "table": ""}, "`table` is empty"),
        ({**APPROVE, "table": "orders"}, "write DATABASE.TABLE"),
        ({**FORGET, "consumer": 0}, "`consumer` is empty"),
        ({**FORGET, "table": "shop.orders"}, "`table` does not belong to forget"),
        ({**RESUME, "plan": "apply"}, "`plan` does not belong to resume"),
        ({"act": "repair", "table": "orders", "reason": "r"}, "write DATABASE.TABLE"),
        ({"act": "show", "table": "shop.orders"}, "`table` does not belong to show"),
    ],
)
def test_fields_that_do_not_fit_the_act_are_refused(config: dict[str, Any], words: str) -> None:
    assert words in problem_of(Decision(**config))


@pytest.mark.parametrize(
    "config", [APPROVE, RESUME, FORGET, {}, {"act": "plan_repair"}, {"act": "repair", "table": "a.b", "reason": "r"}]
)
def test_fields_that_fit_the_act_are_accepted(config: dict[str, Any]) -> None:
    assert not problem_of(Decision(**config))


def test_a_decision_whose_fields_do_not_fit_changes_nothing(directory: Path, tmp_path: Path) -> None:
    result, reported, tags = launched(tmp_path, **{**APPROVE, "plan": ""})
    assert not result.success
    assert "`plan` is empty" in reported
    assert REASON_TAG not in tags
    _nothing_is_decided(directory)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**APPROVE, "plan": "keep"}, "choose one of apply, new_column"),
        ({**APPROVE, "table": "shop.audit"}, "sluice schema resume shop shop.audit"),
        ({**APPROVE, "table": "shop.orders`; DROP TABLE x"}, "has not stopped"),
        ({**RESUME, "table": "shop.calm"}, "has not stopped"),
        ({**RESUME, "table": "shop.lost"}, "which checks the Delta table first"),
        (FORGET, "has no consumer 7"),
    ],
)
def test_what_cannot_be_decided_changes_nothing(
    directory: Path, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    result, reported, _ = launched(tmp_path, **config)
    assert not result.success
    assert words in reported
    _nothing_is_decided(directory)


def _nothing_is_decided(directory: Path) -> None:
    assert requests(directory) == ()
    assert forgets_requested(directory) == ()
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == ""


@pytest.mark.found
def test_a_decision_about_what_was_seen_before_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    """Defect 30: an approval or a resume applied to whatever waited when the run began, and not to what the operator had seen."""
    again = dataclasses.replace(HELD, order_key=HELD.order_key + 90, position="mysql-bin.000001:103@1")
    later = dataclasses.replace(POSITION, offset=777)
    ReviewFiles(directory).note(again)
    for table, state, reason, position in (
        ("orders", TableState.DDL_HELD, again.reason, POSITION),
        ("audit", TableState.DDL_UNSUPPORTED, "it cannot be read", later),
    ):
        stop = StoppedTable(database="shop", table=table, state=state, reason=reason, position=position)
        FileLedger(directory).update(lambda ledger, stop=stop: ledger.resume_table("shop", stop.table).stop_table(stop))  # type: ignore[misc]
    result, reported, _ = launched(tmp_path, **APPROVE)
    assert not result.success
    assert (
        f"now waits for approval: `{HELD.statement}` at {again.position} instead of the statement at {HELD.position}"
        in reported
    )
    result, reported, _ = launched(tmp_path, **RESUME)
    assert not result.success
    assert f"at {later} in the state DDL_UNSUPPORTED (it cannot be read" in reported
    _nothing_is_decided(directory)
    assert ReviewFiles(directory).approved("shop", "orders", again.order_key) == ""


@pytest.mark.found
def test_the_second_of_two_operators_does_not_replace_the_first_ones_plan(directory: Path, tmp_path: Path) -> None:
    """Defect 30: two runs both reported that their plan was approved, and the engine used the later one."""
    assert launched(tmp_path, **APPROVE)[0].success
    result, reported, _ = launched(tmp_path, **{**APPROVE, "plan": "new_column"})
    assert not result.success
    assert "is already approved as apply, and" in reported
    assert "`sluice schema approve shop shop.orders --plan new_column` replaces the approval" in reported
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == "apply"
    assert launched(tmp_path, **APPROVE)[0].success, "the same decision again"
    _, reported, _ = launched(tmp_path)
    assert "The change is approved as `apply`; the engine has not read the approval yet." in reported


@pytest.mark.found
def test_a_run_that_ends_while_it_decides_has_its_reason_and_can_be_launched_again(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 30: a run that failed while it saved its decision did not show the operator's reason. The reason became a tag of the run only
    after the decision was saved.
    """
    with monkeypatch.context() as patched:

        def ends(*_: object) -> None:
            raise ActRefusedError("it ends between the approval and the request")

        patched.setattr(stopped_table, "request", ends)
        result, _, tags = launched(tmp_path, **APPROVE)
    assert (result.success, tags[REASON_TAG]) == (False, "r")
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == "apply"
    assert requests(directory) == ()
    assert launched(tmp_path, **APPROVE)[0].success
    assert [each.table for each in requests(directory)] == ["orders"]


def test_a_decision_reaches_the_engine_of_another_host_by_the_shared_ledger(tmp_path: Path) -> None:
    shared = MetaConfig(kind="sql", url=f"sqlite:///{tmp_path}/meta.db")
    here, there = (make_config(tmp_path / host).model_copy(update={"meta": shared}) for host in ("here", "there"))
    directory = there.destination_dir("shop")
    stop = StoppedTable(
        database="shop", table="orders", state=TableState.DDL_HELD, reason=HELD.reason, position=POSITION
    )
    StoredLedger(record_store(directory), "shop").update(lambda ledger: ledger.stop_table(stop))
    ReviewFiles(directory).note(HELD)
    _, reported, _ = launched_with(here)
    assert HELD.statement in reported
    result, reported, tags = launched_with(here, **APPROVE)
    assert result.success, reported
    assert tags[REASON_TAG] == "r"
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == "apply"
    assert [each.table for each in requests(directory)] == ["orders"]


def test_a_change_that_an_earlier_version_stored_is_shown_and_approved(directory: Path, tmp_path: Path) -> None:
    (file,) = (directory / "schema-changes").glob("*.held.json")
    file.write_text(file.read_text().replace('"position"', '"place"'))
    _, reported, _ = launched(tmp_path)
    assert HELD.position in reported
    assert launched(tmp_path, **APPROVE)[0].success


def links_of(reported: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns each link to the launchpad as its title, the comments in its config, and the values in its config."""
    found = []
    for title, address in re.findall(r"\[([a-z_ ]+)\]\((/locations/[^)\s]+)\)", reported):
        split = urllib.parse.urlsplit(address)
        assert split.path == "/locations/__repository__@my%20shop/jobs/decide/playground/setup"
        (config,) = urllib.parse.parse_qs(split.query)["config"]
        fields = yaml.safe_load(config)["ops"]["act_on_decision"]["config"]
        found.append((title, "\n".join(line for line in config.splitlines() if line.startswith("# ")), fields))
    return found


@pytest.mark.found
def test_each_decision_has_a_link_that_puts_its_plan_into_the_launchpad(directory: Path, tmp_path: Path) -> None:
    """Defect 30: the plan was only in a run's output, and operators had to copy it into the launchpad."""
    FileLedger(directory).update(
        lambda ledger: ledger.with_consumer(Consumer(client_id=1001, filter="", cursor=POSITION))
    )
    write_tables(directory)
    launchpad = Launchpad(repository="__repository__", location="my shop")
    with dg.DagsterInstance.ephemeral() as instance:
        differs = TableResult(table="shop.odd-näme$", verdict=Verdict.DIFFERENT)
        instance.report_runless_asset_event(evaluation_of(make_config(tmp_path), "shop", differs))
        links = links_of(waiting(instance, directory, "shop", launchpad))
    rest = {"destination": "shop", "reason": ""}
    held = {**APPROVE, **rest}
    assert [(title, fields) for title, _, fields in links] == [
        ("approve as apply", held),
        ("approve as new_column", {**held, "plan": "new_column"}),
        ("resume", {**RESUME, **rest}),
        ("plan_repair", {"act": "plan_repair", "table": "shop.odd-näme$", **rest}),
        ("repair", {"act": "repair", "table": "shop.odd-näme$", **rest}),
        ("forget", {"act": "forget", "consumer": 1001, **rest}),
    ]
    for words in (HELD.statement, HELD.position, "rename a to b: new_column: ", "write a reason"):
        assert words in links[0][1]
    result, _, _ = launched(tmp_path, **{**links[0][2], "reason": "as agreed"})
    assert result.success, "only the reason is missing"


def test_nothing_of_a_statement_leaves_its_comment(directory: Path) -> None:
    config = config_text(["ALTER\nops: {}\u2028x: 1\x85y: 2\x00"], {"act": "show", "table": "a`b: {c}\n- d"})
    assert yaml.safe_load(config) == {"ops": {"act_on_decision": {"config": {"act": "show", "table": "a`b: {c}\n- d"}}}}
