"""A run of one batch takes the changes that arrived while it started. If that is not possible, it merges the batch as it was staged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.errors import StagingError
from sluice.orchestration.base.batch_reference import BATCH, BATCH_TAG, RUNS_TAG, BatchReference, delivery_of
from sluice.orchestration.base.testing import FakePorts
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

JOB = "merge_shop_job"
ORDERS = dg.AssetKey(["shop", "orders"])


class Shop:
    """A destination with a batch of five changes out, and three more that came since."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        config = make_config(root)
        write_tables(config.destination_dir("shop"))
        self.fakes: FakePorts = make_fake_ports(config)
        self.engine, self.feed, self.instance = self.fakes.engine, self.fakes.feed, instance
        self.defs = build_definitions(config, self.fakes.ports())
        self.engine.capture(5)
        batch = self.engine.hand_out(0)
        assert batch is not None
        self.reference = BatchReference.of("shop", batch)
        self.engine.capture(3)

    def run(self, **tags: str) -> Any:
        return self.defs.resolve_job_def(JOB).execute_in_process(
            instance=self.instance,
            run_config={"ops": {"merge_shop": {"config": self.reference.to_config()}}},
            tags={**self.reference.to_tags(), RUNS_TAG: BATCH, **tags},
            raise_on_error=False,
        )

    def tags(self, result: Any) -> dict[str, str]:
        run = self.instance.get_run_by_id(result.run_id)
        assert run is not None
        return dict(run.tags)

    def merged(self) -> list[str]:
        return [f"staging/{order.batch_dir.name}" for order in self.fakes.merge.orders]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Shop(tmp_path, instance)


def test_what_came_while_the_run_started_is_merged_with_its_batch(shop: Shop) -> None:
    held: list[int | None] = []
    shop.feed.before = lambda _: held.append(shop.fakes.files.held_by)
    result = shop.run()
    assert result.success
    assert shop.engine.head is not None
    assert (shop.engine.head.delivery, shop.engine.head.rows) == (2, 8)
    assert shop.merged() == [shop.engine.head.path]
    assert held == [0], "asked once, under the run lock: nobody has begun it"
    assert shop.tags(result)[BATCH_TAG] == BatchReference.of("shop", shop.engine.head).run_key
    assert shop.engine.acked == [], "the ticks ack by the run's record"
    (told,) = shop.instance.fetch_materializations(ORDERS, limit=9).records
    assert told.asset_materialization is not None
    assert told.asset_materialization.metadata["end_position"].value == str(shop.engine.head.end)


def test_the_tags_name_the_longer_batch_before_anything_is_written(shop: Shop) -> None:
    seen: list[str] = []

    def look(_: str) -> None:
        (run,) = shop.instance.get_runs(dg.RunsFilter(job_name=JOB))
        seen.append(delivery_of(run.tags))

    shop.fakes.merge.between = look
    shop.run()
    assert set(seen) == {"2"}


@pytest.mark.parametrize("why", ["no engine", "a refusal", "nothing came", "conf/ changed"])
def test_a_batch_is_merged_as_it_was_cut_where_it_does_not_grow(shop: Shop, why: str) -> None:
    def refuse(_: str) -> None:
        raise StagingError("no space left in staging/")

    match why:
        case "no engine":
            shop.feed.away = True
        case "a refusal":
            shop.feed.before = refuse
        case "nothing came":
            shop.engine.captured_up_to -= 3
        case "conf/ changed":
            shop.fakes.conf_changed = "destinations/shop.yaml in conf/ has changed"
    result = shop.run()
    assert result.success
    assert shop.merged() == [shop.reference.path]
    assert shop.tags(result)[BATCH_TAG] == shop.reference.run_key


@pytest.mark.found
@pytest.mark.parametrize("answered", [True, False])
def test_a_run_whose_request_was_sent_and_not_answered_writes_nothing(shop: Shop, answered: bool) -> None:
    """Number 3: a run that gave up waiting merged the batch as it was, and the engine replaced it amid the merge."""

    def answer(_: str) -> None:
        shop.feed.unanswered = True
        assert shop.engine.head is not None
        if answered:
            shop.engine.append_to(shop.engine.head)

    shop.feed.before = answer
    result = shop.run()
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    said = failure.step_failure_data.user_failure_data.description
    assert said.startswith("nothing was written: the engine was requested to append to delivery 1")
    assert "has not answered for 10 s" in said
    assert shop.merged() == []
    assert shop.engine.head is not None
    assert shop.engine.head.delivery == (2 if answered else 1), "it comes again in another run"


def test_a_run_that_dagster_gave_up_claims_no_longer_batch(shop: Shop) -> None:
    def give_up(_: str) -> None:
        (run,) = shop.instance.get_runs(dg.RunsFilter(job_name=JOB))
        shop.instance.report_run_failed(run, "ended by hand")

    shop.feed.before = give_up
    result = shop.run()
    assert not result.success
    assert shop.merged() == []
    assert shop.tags(result)[BATCH_TAG] == shop.reference.run_key


def test_a_batch_that_is_not_out_any_more_is_refused(shop: Shop) -> None:
    assert shop.engine.head is not None
    shop.engine.ack(shop.engine.head)
    assert not shop.run().success
    assert shop.merged() == []
