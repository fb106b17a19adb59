"""Tests a draining run in one process. The definitions and run records are real. The engine, the RPC endpoint, the locks and the merge
are fakes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import StagingError
from sluice.orchestration.base.batch_reference import BATCH_TAG, DRAIN, RUNS_TAG, BatchReference, delivery_of
from sluice.orchestration.base.ports import EngineAwayError, no_run_engine
from sluice.orchestration.base.testing import FakePorts
from sluice.orchestration.checks.observations import TABLE_CHECK
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run import drain_run, merge_reports
from sluice.orchestration.run.drain_rules import why_leave
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

JOB = "merge_shop_job"
ORDERS = dg.AssetKey(["shop", "orders"])


class Shop:
    """A destination with draining runs. The engine has one batch of five changes waiting."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        config = make_config(root)
        shop = config.destinations["shop"]
        draining = shop.model_copy(update={"runs": "drain"})
        self.config = config.model_copy(update={"destinations": {"shop": draining}})
        write_tables(self.config.destination_dir("shop"))
        self.fakes: FakePorts = make_fake_ports(self.config)
        self.engine, self.feed = self.fakes.engine, self.fakes.run_engine
        self.instance = instance
        self.defs = build_definitions(self.config, self.fakes.ports())
        self.engine.capture(5)

    def run(self) -> Any:
        """Runs the oldest batch in flight, as a tick requests it."""
        batch = self.engine.hand_out(0)
        assert batch is not None
        reference = BatchReference.of("shop", batch)
        return self.defs.resolve_job_def(JOB).execute_in_process(
            instance=self.instance,
            run_config={"ops": {"merge_shop": {"config": reference.to_config()}}},
            tags={**reference.to_tags(), RUNS_TAG: DRAIN},
            raise_on_error=False,
        )

    def capture_before(self, *calls: str) -> None:
        """Adds three changes each time that one of these calls arrives."""

        def before(name: str) -> None:
            if name in calls:
                self.engine.capture(3)

        self.feed.before = before

    def tag(self, result: Any) -> str:
        run = self.instance.get_run_by_id(result.run_id)
        assert run is not None
        return run.tags[BATCH_TAG]

    def merged(self) -> list[str]:
        return [order.batch_dir.name for order in self.fakes.merge.orders]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(limits, "DRAIN_IDLE_SECONDS_MAX", 0.01)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Shop(tmp_path, instance)


def test_each_batch_is_merged_reported_and_settled_on_its_own(shop: Shop) -> None:
    shop.capture_before("ack 1", "ack 2")
    result = shop.run()
    assert result.success
    assert shop.engine.acked == [1, 2, 3]
    assert [call for call in shop.feed.calls if call.startswith("ack")] == ["ack 1", "ack 2", "ack 3"]
    reported = shop.instance.fetch_materializations(ORDERS, limit=10, ascending=True).records
    assert len(_ends(shop)) == 3
    assert len(set(_ends(shop))) == 3
    tags = [each.asset_materialization.tags or {} for each in reported if each.asset_materialization]
    assert all(each["dagster/data_version"] for each in tags)
    assert shop.fakes.files.drained_by is None
    assert shop.fakes.files.held_by is None


def test_the_check_of_a_table_counts_for_all_that_a_run_merges_into_it(shop: Shop) -> None:
    """Dagster shows a check's result until another run materializes the table. So one result per run is enough."""
    shop.capture_before("ack 1", "ack 2")
    result = shop.run()
    flowing = shop.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(ORDERS, TABLE_CHECK), limit=10
    )
    assert [(each.run_id, each.status.value) for each in flowing] == [(result.run_id, "SUCCEEDED")]


def test_a_batch_is_settled_then_reported_then_the_next_is_requested(shop: Shop) -> None:
    """If there are many tables, the report takes seconds. The ack does not wait for the report."""
    reported = []
    shop.feed.before = lambda name: reported.append(
        (name, len(shop.instance.fetch_materializations(ORDERS, limit=10).records))
    )
    shop.run()
    assert ("ack 1", 0) in reported
    assert [count for name, count in reported if name.startswith("hand_out")][:1] == [1]


def test_what_a_run_settled_and_did_not_report_is_reported_by_the_next(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise OSError("the run's process was killed")

    with monkeypatch.context() as dying:
        dying.setattr(merge_reports.MergeReports, "event", die)
        assert not shop.run().success
    assert shop.engine.acked == [1]
    assert _ends(shop) == []
    shop.engine.capture(3)
    assert shop.run().success
    first, second = _ends(shop)
    assert first != second
    shop.engine.capture(3)
    shop.run()
    assert len(_ends(shop)) == 3, "each batch once"


def _ends(shop: Shop) -> list[object]:
    reported = shop.instance.fetch_materializations(ORDERS, limit=10, ascending=True).records
    return [
        each.asset_materialization.metadata["end_position"].value for each in reported if each.asset_materialization
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"batch": {}, "tables": []}', '{"batch": 1}'])
def test_tables_that_another_version_left_unreported_are_named_in_the_log(shop: Shop, text: str) -> None:
    shop.instance.daemon_cursor_storage.set_cursor_values({"sluice/unreported/shop": text})
    result = shop.run()
    assert result.success
    said = [entry.user_message or "" for entry in shop.instance.all_logs(result.run_id)]
    assert any("Dagster does not show the merge, because the stored report cannot be read" in each for each in said)
    assert len(_ends(shop)) == 1


def test_the_tags_name_the_batch_that_the_run_is_at(shop: Shop) -> None:
    seen: list[str] = []

    def look(_: str) -> None:
        (run,) = shop.instance.get_runs(dg.RunsFilter(job_name=JOB))
        seen.append(delivery_of(run.tags))

    shop.fakes.merge.between = look
    shop.capture_before("ack 1")
    shop.run()
    assert sorted(set(seen)) == ["1", "2"]


def test_the_run_lock_is_free_between_two_batches(shop: Shop) -> None:
    held: list[tuple[str, int | None]] = []
    shop.feed.before = lambda name: held.append((name, shop.fakes.files.held_by))
    shop.run()
    assert held.pop(0) == ("take 1", 0), "its first batch is taken under the lock"
    assert held
    assert all(holder is None for _, holder in held)


def test_a_process_that_waits_for_the_run_lock_gets_it_before_the_next_batch(shop: Shop) -> None:
    looks: list[int] = []

    def wanted() -> bool:
        looks.append(len(shop.fakes.merge.orders))
        return len(looks) < 4

    shop.fakes.files.wanted = wanted
    shop.run()
    assert looks[:4] == [0, 0, 0, 0], "nothing was merged while somebody waited"


def test_a_batch_that_fails_ends_the_run_whose_tags_then_name_it(shop: Shop) -> None:
    def fail_at_the_second(name: str) -> None:
        if name == "ack 1":
            shop.engine.capture(5)
            shop.fakes.merge.error = "the disk is full"

    shop.feed.before = fail_at_the_second
    result = shop.run()
    assert not result.success
    assert shop.engine.acked == [1]
    assert shop.engine.head is not None
    assert shop.tag(result) == BatchReference.of("shop", shop.engine.head).run_key


def test_a_run_whose_engine_went_away_ends_well_and_leaves_its_batch_to_the_ticks(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_run, "ANSWER_SECONDS_MAX", 0.1)
    shop.feed.away = True
    result = shop.run()
    assert result.success
    assert shop.engine.acked == []
    assert shop.engine.head is not None
    assert shop.tag(result) == BatchReference.of("shop", shop.engine.head).run_key, "a tick finds a SUCCESS of it"
    assert len(shop.instance.fetch_materializations(ORDERS, limit=10).records) == 1, "it is told, settled or not"


def test_a_run_that_finds_no_engine_merges_its_batch_before_it_ends_well(shop: Shop) -> None:
    """After the run's success, the ticks ack the batch. Without the merge, the changes of the batch would be lost."""
    ports = dataclasses.replace(shop.fakes.ports(), run_engine=no_run_engine)
    shop.defs = build_definitions(shop.config, ports)
    result = shop.run()
    assert result.success
    assert len(shop.merged()) == 1


@pytest.mark.found
@pytest.mark.parametrize("done", [True, False])
def test_a_run_whose_ack_was_not_answered_takes_no_further_batch(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Test for defect 3, for the other requests of a run: the run ends, and its record settles what it merged, whether or not the engine
    executed the request.
    """
    monkeypatch.setattr(drain_run, "ANSWER_SECONDS_MAX", 0.0)

    def lose(name: str) -> None:
        shop.feed.away = name == "ack 1"
        if done and name == "ack 1":
            shop.engine.ack(shop.engine.head)  # type: ignore[arg-type]

    shop.feed.before = lose
    result = shop.run()
    assert result.success
    assert shop.feed.calls == ["take 1", "ack 1"]
    assert len(shop.merged()) == 1
    assert shop.tag(result).endswith(":1"), "a tick finds a SUCCESS of it"


@pytest.mark.found
def test_a_batch_that_an_unanswered_request_handed_out_is_the_next_runs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test for defect 3, for the other requests of a run: a batch is in flight that no run's tags name, so a tick requests a run for it."""
    monkeypatch.setattr(drain_run, "ANSWER_SECONDS_MAX", 0.0)

    def lose(name: str) -> None:
        if name == "hand_out":
            shop.feed.away = True
            shop.engine.capture(3)
            assert shop.engine.hand_out(0.0) is not None

    shop.feed.before = lose
    result = shop.run()
    assert result.success
    assert (shop.engine.acked, len(shop.merged())) == ([1], 1)
    assert shop.tag(result).endswith(":1")


def test_a_lost_answer_is_requested_again(shop: Shop) -> None:
    lost = iter([True])

    def lose(name: str) -> None:
        if name == "ack 1" and next(lost, False):
            shop.engine.ack(shop.engine.head)  # type: ignore[arg-type]
            raise EngineAwayError("the connection broke after the ack")

    shop.feed.before = lose
    assert shop.run().success
    assert shop.engine.acked == [1]
    assert shop.feed.calls[:3] == ["take 1", "ack 1", "ack 1"]
    assert "hand_out" in shop.feed.calls, "it goes on"


def test_a_batch_that_was_rolled_back_meanwhile_comes_again_and_is_settled_as_such(shop: Shop) -> None:
    def roll_back(name: str) -> None:
        if name == "ack 1":
            shop.engine.rollback(shop.engine.head)  # type: ignore[arg-type]

    shop.feed.before = roll_back
    assert shop.run().success
    assert shop.engine.acked == [2]
    assert shop.merged()[0] == shop.merged()[1], "the same files, under another delivery"


def test_a_run_that_dagster_gave_up_takes_no_further_batch(shop: Shop) -> None:
    def give_up(name: str) -> None:
        if name == "ack 1":
            (run,) = shop.instance.get_runs(dg.RunsFilter(job_name=JOB))
            shop.instance.report_run_failed(run, "ended by hand")
            shop.engine.capture(5)

    shop.feed.before = give_up
    result = shop.run()
    assert not result.success
    assert len(shop.fakes.merge.orders) == 1
    assert shop.tag(result).endswith(":1")


def test_a_run_during_a_draining_run_merges_its_batch_and_requests_no_other(shop: Shop) -> None:
    shop.fakes.files.drained_by = 4242
    assert shop.run().success
    assert shop.feed.calls == ["take 1"]
    assert len(shop.fakes.merge.orders) == 1


def test_a_run_during_a_draining_run_leaves_the_reports_of_that_run(shop: Shop) -> None:
    shop.instance.daemon_cursor_storage.set_cursor_values({"sluice/unreported/shop": "of the other run"})
    shop.fakes.files.drained_by = 4242
    assert shop.run().success
    kept = shop.instance.daemon_cursor_storage.get_cursor_values({"sluice/unreported/shop"})
    assert kept == {"sluice/unreported/shop": "of the other run"}


def test_an_engine_that_closes_sends_its_runs_away(shop: Shop) -> None:
    shop.feed.leave = "the engine's process is to end"
    assert shop.run().success
    assert shop.engine.acked == [1]
    assert shop.feed.calls == ["take 1", "ack 1", "hand_out"]


@pytest.mark.parametrize("at", ["ack 1", "hand_out"])
def test_a_run_whose_conf_has_changed_settles_its_batch_and_takes_no_other(shop: Shop, at: str) -> None:
    def change(name: str) -> None:
        if name == at:
            shop.engine.capture(3)
            shop.fakes.conf_changed = "destinations/shop.yaml in conf/ has changed"

    shop.feed.before = change
    result = shop.run()
    assert result.success
    assert shop.engine.acked == [1]
    assert len(shop.fakes.merge.orders) == 1
    assert shop.tag(result).endswith(":1"), "a batch that was handed out meanwhile is another run's"


def test_what_the_engine_refuses_is_for_the_ticks_to_say(shop: Shop) -> None:
    def refuse(name: str) -> None:
        if name == "hand_out":
            raise StagingError("no space left in staging/")

    shop.feed.before = refuse
    assert shop.run().success
    assert shop.engine.acked == [1]


@pytest.mark.parametrize(
    ("seconds", "idle_seconds", "why"),
    [
        (0, 0, ""),
        (1799, 299, ""),
        (1800, 0, "merged batches for 1800 s"),
        (900, 300, "no changes arrived for 300 s"),
    ],
)
def test_a_run_leaves_by_age_and_by_idleness(seconds: float, idle_seconds: float, why: str) -> None:
    assert why in why_leave(seconds, idle_seconds)
    assert bool(why_leave(seconds, idle_seconds)) == bool(why)
