"""Shortens a history that fails: leaves out or simplifies steps as long as the history still fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from benchmarks.histories.steps import History, Scenario, Step

Fails = Callable[[History], bool]


def shortest(history: History, fails: Fails) -> History:
    """Returns a shortened history that still fails. The shortened history would no longer fail if any further step were left out or
    simplified.
    """
    while True:
        shorter = _simpler(_without_steps(history, fails), fails)
        if shorter == history:
            return history
        history = shorter


def _without_steps(history: History, fails: Fails) -> History:
    """Leaves out sequences of steps, and tries long sequences first."""
    size = max(1, len(history.steps) // 2)
    while size:
        at = 0
        while at < len(history.steps):
            candidate = dataclasses.replace(history, steps=history.steps[:at] + history.steps[at + size :])
            if fails(candidate):
                history = candidate
            else:
                at += size
        size //= 2
    return history


def _simpler(history: History, fails: Fails) -> History:
    for scenario in _simpler_scenarios(history.scenario):
        candidate = dataclasses.replace(history, scenario=scenario)
        if fails(candidate):
            history = candidate
            break
    for index in range(len(history.steps)):
        for step in _simpler_steps(history.steps[index]):
            steps = (*history.steps[:index], step, *history.steps[index + 1 :])
            candidate = dataclasses.replace(history, steps=steps)
            if fails(candidate):
                history = candidate
                break
    return history


def _simpler_scenarios(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.second:
        yield dataclasses.replace(scenario, second="")
    if scenario.from_beginning:
        yield dataclasses.replace(scenario, from_beginning=False)


def _simpler_steps(step: Step) -> Iterator[Step]:
    """Yields versions of a step with one thing left out or simplified."""
    for index, fault in enumerate(step.faults):
        others = step.faults[:index], step.faults[index + 1 :]
        yield dataclasses.replace(step, faults=(*others[0], *others[1]))
        if fault.nth > 1:
            yield dataclasses.replace(
                step, faults=(*others[0], dataclasses.replace(fault, nth=fault.nth - 1), *others[1])
            )
    if step.line:
        yield dataclasses.replace(step, line=0)
    for index in range(len(step.deeds) if len(step.deeds) > 1 else 0):
        yield dataclasses.replace(step, deeds=step.deeds[:index] + step.deeds[index + 1 :])
    for index, (deed, key) in enumerate(step.deeds):
        plain: tuple[str, int] = ("log" if deed in ("relog", "unlog") else "put", 1)
        if (deed, key) != plain:
            yield dataclasses.replace(step, deeds=(*step.deeds[:index], plain, *step.deeds[index + 1 :]))  # type: ignore[arg-type]
    if step.number and step.verb != "wait":
        yield dataclasses.replace(step, number=step.number - 1)
