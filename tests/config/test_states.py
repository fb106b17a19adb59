"""Tests the states: each state has its line in docs/reference/states.md, each error has its state, and the engine makes exactly the
permitted transitions.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sluice.cdc_engine import errors
from sluice.cdc_engine.errors import CanalServiceError, Remedy, SluiceError
from sluice.cdc_engine.states import (
    ENDED,
    ENGINE_TRANSITIONS,
    TABLE_TRANSITIONS,
    EngineState,
    OperatorAct,
    TableState,
    acts_on,
    engine_follows,
    engine_state,
    way_out,
)
from sluice.spark_jobs import errors as spark_errors
from sluice.spark_jobs import table_owner
from sluice.spark_jobs.cascades import derive as cascades

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "states.md").read_text()


def documented(section: str) -> set[str]:
    """Returns the states in the first column of a section's first table."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[A-Z].*?) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


def error_classes() -> list[type[SluiceError]]:
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, SluiceError) and not issubclass(each, CanalServiceError)
    ]


@pytest.mark.parametrize(
    ("section", "states"),
    [("States of an engine", set(EngineState)), ("States of a table", set(TableState) - {TableState.FLOWING})],
)
def test_each_state_has_its_line_in_the_docs_and_each_line_its_state(section: str, states: set[str]) -> None:
    assert documented(section) == {str(each) for each in states}


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_that_ends_an_engine_has_its_state(kind: type[SluiceError]) -> None:
    ends_one_table_or_none = (
        kind.code in {"TABLE_STOPPED", "TABLE_CHANGED", "NOT_A_TABLE", "FILES_RENUMBERED", "STANDBY_BEHIND", "PUBLISH"}
        or kind.remedy is Remedy.CALLER
    )
    if not ends_one_table_or_none:
        assert engine_state(kind.code) == kind.code


def test_a_name_that_is_no_state_is_an_error() -> None:
    assert engine_state("NO_SUCH") is EngineState.ERROR


def test_every_state_says_what_may_follow() -> None:
    assert ENGINE_TRANSITIONS.keys() == set(EngineState)
    assert TABLE_TRANSITIONS.keys() == set(TableState)


def test_an_engine_without_its_lease_says_nothing_else() -> None:
    assert not any(engine_follows(EngineState.LEASE_LOST, reported) for reported in EngineState)


@pytest.mark.parametrize("ended", sorted(ENDED - {EngineState.LEASE_LOST}))
def test_an_engine_that_ended_keeps_its_reason_until_it_starts_again(ended: EngineState) -> None:
    follows = {reported for reported in EngineState if engine_follows(ended, reported)}
    assert follows == {EngineState.STARTING, EngineState.STOPPED, EngineState.LEASE_LOST}


@pytest.mark.parametrize("state", sorted(set(TableState) - {TableState.FLOWING}))
def test_no_stop_of_a_table_is_a_dead_end(state: TableState) -> None:
    assert TableState.FLOWING in TABLE_TRANSITIONS[state]
    assert acts_on(state)[-1] is OperatorAct.RESUME


@pytest.mark.parametrize("state", sorted(set(TableState) - {TableState.FLOWING}))
def test_a_shell_passes_the_name_of_a_stopped_table_as_one_argument(state: TableState) -> None:
    commands = [shlex.split(each) for each in way_out(state, "shop", "shop.we ird").split("`")[1::2]]
    assert commands
    assert all("shop.we ird" in each for each in commands)


def test_incomplete_row_images_are_resolved_by_a_new_snapshot() -> None:
    """Defect 71: the advice was to resume the table, which stopped again at the same incomplete image."""
    first = way_out(TableState.IMAGE_NOT_FULL, "shop", "shop.orders").split("`")[1]
    assert first == "sluice snapshot start shop --tables shop.orders"


def test_spark_names_the_states_of_the_lake_by_the_same_names() -> None:
    named = {
        spark_errors.MERGE_FAILED,
        cascades.CASCADE_UNSEEN,
        *(getattr(table_owner, name) for name in dir(table_owner) if name.startswith("TABLE_") and name.isupper()),
    }
    assert named <= {str(each) for each in TableState}
