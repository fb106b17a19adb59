"""Tests that the simulator accepts only the one difference that docs/reliability.md states as a limit, and reports all others."""

from __future__ import annotations

import pytest

from benchmarks.histories.judging.bench import Stage
from benchmarks.histories.steps import History, Scenario, Step
from tests.histories.test_holes_identity import FAIL_OVER, FLOW, commit

RESET, LOOK = Step("reset"), Step("wait", number=70)
# After RESET, the server gives a second transaction the GTID of the one that the engine has read. FAIL_OVER moves to a standby that has
# the second transaction.
TWICE = (commit("log"), FLOW, RESET, commit("log"), commit())


def test_histories_know_what_is_stated_not_to_be_noticed(stage: Stage) -> None:
    found = stage.play(History(Scenario(), (*TWICE, FAIL_OVER)))
    assert (found.broken, found.named, found.equal) == ("", (), False)


@pytest.mark.parametrize(
    "steps",
    [
        (*TWICE, LOOK, LOOK, FLOW, FAIL_OVER),
        TWICE,
    ],
    ids=["connected anew before the takeover", "no takeover"],
)
def test_histories_notice_what_is_not_stated(stage: Stage, steps: tuple[Step, ...]) -> None:
    found = stage.play(History(Scenario(), steps))
    assert found.kept
    assert found.named or found.equal


def test_histories_take_any_other_difference_for_a_broken_promise(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patch of `rows_of` makes the missing rows belong to neither of the two transactions, so the limit does not explain them."""
    monkeypatch.setattr("benchmarks.histories.judging.stated_limits.rows_of", lambda _: [])
    assert not stage.play(History(Scenario(), (*TWICE, FAIL_OVER))).kept
