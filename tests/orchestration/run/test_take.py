"""Tests that a run takes its batch before the merge: the engine appends the changes that arrived while the run started, and fixes the
batch's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.errors import MetaError, StagingError
from sluice.orchestration.base.batch_reference import BATCH_TAG, BatchReference
from sluice.orchestration.base.ports import EngineAwayError
from sluice.orchestration.base.testing import FakePorts
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run import merge_run
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

JOB = "merge_shop_job"
ORDERS = dg.AssetKey(["shop", "orders"])


class Shop:
    """A destination with a batch of five changes in flight, and three more changes that arrived since."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        config = make_config(root)
        write_tables(config.destination_dir("shop"))
        self.fakes: FakePorts = make_fake_ports(config)
        self.engine, self.feed, self.instance = self.fakes.engine, self.fakes.run_engine, instance
        self.defs = build_definitions(config, self.fakes.ports())
        self.engine.capture(5)
        batch = self.engine.hand_out(0, appendable=True)
        assert batch is not None
        self.reference, self.staged_path = BatchReference.of("shop", batch), batch.path
        self.engine.capture(3)

    def run(self) -> Any:
        return self.defs.resolve_job_def(JOB).execute_in_process(
            instance=self.instance,
            run_config={"ops": {"merge_shop": {"config": self.reference.to_config()}}},
            tags=self.reference.to_tags(),
            raise_on_error=False,
        )

    def merged(self) -> list[str]:
        return [f"staging/{order.batch_dir.name}" for order in self.fakes.merge.orders]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(merge_run, "TAKE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(merge_run, "TAKE_PAUSE_SECONDS", 0.01)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Shop(tmp_path, instance)


def why_failed(result: Any) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.user_failure_data.description)


def test_what_came_while_the_run_started_is_merged_with_its_batch(shop: Shop) -> None:
    held: list[int | None] = []
    shop.feed.before = lambda _: held.append(shop.fakes.files.held_by)
    result = shop.run()
    assert result.success
    head = shop.engine.head
    assert head is not None
    assert (head.delivery, head.rows, head.appendable) == (1, 8, False)
    assert shop.merged() == [head.path]
    assert held == [0], "requested once, under the run lock"
    run = shop.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[BATCH_TAG] == BatchReference.of("shop", head).run_key == shop.reference.run_key
    assert shop.engine.acked == [], "the ticks ack by the run's record"
    (reported,) = shop.instance.fetch_materializations(ORDERS, limit=9).records
    assert reported.asset_materialization is not None
    assert reported.asset_materialization.metadata["end_position"].value == str(head.end)


@pytest.mark.parametrize("why", ["nothing came", "conf/ changed"])
def test_a_batch_is_taken_as_it_was_staged_if_nothing_is_to_be_appended(shop: Shop, why: str) -> None:
    if why == "nothing came":
        shop.engine.captured_up_to -= 3
    else:
        shop.fakes.conf_changed = "destinations/shop.yaml in conf/ has changed"
    assert shop.run().success
    assert shop.merged() == [shop.staged_path]


def raising(error: Exception) -> Callable[[str], None]:
    def fail(_: str) -> None:
        raise error

    return fail


ERRORS = [
    EngineAwayError("no engine of shop answers"),
    StagingError("no space left"),
    MetaError("the ledger did not answer"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_a_batch_whose_end_is_fixed_is_merged_without_the_engine(shop: Shop, error: Exception) -> None:
    """A run on another host than the code server has no endpoint. The batch of such a run is not appendable."""
    assert shop.engine.head is not None
    shop.engine.take(shop.engine.head, append=False)
    shop.feed.before = raising(error)
    assert shop.run().success
    assert shop.merged() == [shop.staged_path]


@pytest.mark.found
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("executed", [True, False])
def test_a_run_whose_request_is_not_answered_writes_nothing(shop: Shop, error: Exception, executed: bool) -> None:
    """Defect 3: a run that stopped waiting for the answer merged the batch as it was, and the engine replaced the
    batch during the merge.
    """

    def lose(_: str) -> None:
        assert shop.engine.head is not None
        if executed:
            shop.engine.take(shop.engine.head)
        raise error

    shop.feed.before = lose
    result = shop.run()
    assert not result.success
    assert why_failed(result).startswith("nothing was written: the engine did not fix the end of delivery 1")
    assert str(error) in why_failed(result)
    assert shop.merged() == []
    assert shop.engine.head is not None
    assert shop.engine.head.appendable is not executed, "it comes again in another run, in either case"


def test_a_request_is_repeated_until_it_is_answered(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process restarts, or the answer to an executed request is lost."""
    monkeypatch.setattr(merge_run, "TAKE_SECONDS_MAX", 60.0)
    failures = iter([*ERRORS, EngineAwayError("the connection broke")])

    def fail_for_a_while(_: str) -> None:
        if (error := next(failures, None)) is not None:
            if "broke" in str(error) and shop.engine.head is not None:
                shop.engine.take(shop.engine.head)
            raise error

    shop.feed.before = fail_for_a_while
    assert shop.run().success
    assert shop.feed.calls == ["take 1"] * 5
    assert shop.engine.head is not None
    assert shop.merged() == [shop.engine.head.path]


@pytest.mark.parametrize("settled", ["acked", "rolled back"])
@pytest.mark.parametrize("amid", [True, False])
def test_a_batch_that_was_settled_is_refused_before_and_during_the_request(
    shop: Shop, settled: str, amid: bool
) -> None:
    def settle(_: str = "") -> None:
        assert shop.engine.head is not None
        (shop.engine.ack if settled == "acked" else shop.engine.rollback)(shop.engine.head)

    if amid:
        shop.feed.before = settle
    else:
        settle()
    result = shop.run()
    assert "already acked or rolled back" in why_failed(result)
    assert shop.merged() == []
    assert len(shop.feed.calls) == amid


def test_no_run_merges_a_batch_that_it_has_not_taken(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.orchestration.assets.take", lambda *_: None)
    result = shop.run()
    assert "is not fixed, because no run has taken it; nothing was written" in why_failed(result)
    assert shop.merged() == []


def test_sentences_about_many_tables_are_joined_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr("sluice.orchestration.run.merge_run.time.monotonic", lambda: now[0])
    sentences = merge_run.JoinedSentences(said.append)
    for name in ("a", "b"):
        sentences.say(name)
    now[0] = merge_run.SENTENCES_SECONDS
    sentences.say("c")
    assert said == ["a; b; c"]
    sentences.say("d")
    sentences.flush()
    sentences.flush()
    assert said == ["a; b; c", "d"]
