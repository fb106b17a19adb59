"""Tests that the simulator knows exactly the one case that production cannot notice, as it is documented."""

from __future__ import annotations

import pytest

from benchmarks.histories.judging.bench import Stage
from benchmarks.histories.steps import History, Scenario, Step
from tests.histories.test_holes_identity import FAIL_OVER, FLOW, commit

RESET, LOOK = Step("reset"), Step("wait", number=70)
#: the number that the engine read is given again, and the standby that takes over has the second transaction under it
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
    """A row that neither of the two transactions changed is missing too."""
    monkeypatch.setattr("benchmarks.histories.judging.stated_limits.rows_of", lambda _: [])
    assert not stage.play(History(Scenario(), (*TWICE, FAIL_OVER))).kept
