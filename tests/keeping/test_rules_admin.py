"""Tests the rule that decides whether an engine is started, restarted, stopped, released or left alone, for all combinations of facts."""

from __future__ import annotations

import itertools

import pytest

from sluice.cdc_engine.keeping.rules import RULES, KeeperAct, KeeperFacts, decide

ALL = [
    KeeperFacts(
        conf=conf,
        running=running,
        tried=tried,
        stopped=stopped,
        requested=requested,
        elsewhere=elsewhere,
        ended=ended,
        due=due,
    )
    for conf, running, tried, requested in itertools.product(
        ("", "a", "b"), ("", "a"), ("", "a"), ("", "restart", "release")
    )
    for stopped, elsewhere, ended, due in itertools.product((False, True), repeat=4)
]


@pytest.mark.parametrize(
    ("facts", "act"),
    [
        (KeeperFacts(), KeeperAct.LEAVE),
        (KeeperFacts(conf="a"), KeeperAct.START),
        (KeeperFacts(conf="a", tried="a"), KeeperAct.LEAVE),  # The engine could not be started a moment ago.
        (KeeperFacts(conf="a", tried="a", due=True), KeeperAct.START),
        (KeeperFacts(conf="a", tried="a", due=True, elsewhere=True), KeeperAct.LEAVE),  # This process is on standby.
        (KeeperFacts(conf="a", tried="a", due=True, stopped=True), KeeperAct.LEAVE),
        (KeeperFacts(conf="b", tried="a"), KeeperAct.START),  # Its file was corrected.
        (KeeperFacts(conf="a", running="a"), KeeperAct.LEAVE),
        (KeeperFacts(conf="b", running="a"), KeeperAct.RESTART),
        (KeeperFacts(running="a"), KeeperAct.STOP),
        (KeeperFacts(conf="a", running="a", stopped=True), KeeperAct.STOP),
        (KeeperFacts(conf="b", tried="a", stopped=True), KeeperAct.LEAVE),
        (KeeperFacts(conf="a", running="a", requested="restart"), KeeperAct.RESTART),
        (KeeperFacts(conf="a", tried="a", requested="restart"), KeeperAct.RESTART),  # The engine ended by itself.
        (KeeperFacts(conf="a", tried="a", requested="restart", elsewhere=True), KeeperAct.LEAVE),
        (KeeperFacts(conf="a", running="a", requested="release"), KeeperAct.RELEASE),
        (KeeperFacts(conf="a", tried="a", requested="release", elsewhere=True), KeeperAct.LEAVE),
        (KeeperFacts(conf="a", running="a", tried="a", ended=True), KeeperAct.START),  # This does not depend on a tick.
        (KeeperFacts(conf="a", running="a", stopped=True, ended=True), KeeperAct.STOP),
    ],
)
def test_admin_what_is_done_about_an_engine(facts: KeeperFacts, act: KeeperAct) -> None:
    assert decide(facts)[0] is act


def test_admin_nothing_runs_that_conf_or_an_operator_does_not_want() -> None:
    for facts in ALL:
        act, why = decide(facts)
        assert why
        unwanted = not facts.conf or facts.stopped
        assert (act is KeeperAct.STOP) == (unwanted and bool(facts.running)), facts
        assert not unwanted or act in {KeeperAct.STOP, KeeperAct.LEAVE}, facts


def test_admin_an_engine_that_is_as_it_should_be_is_left_alone() -> None:
    for facts in ALL:
        if facts.conf and facts.running == facts.conf and not (facts.stopped or facts.requested or facts.ended):
            assert decide(facts)[0] is KeeperAct.LEAVE


def test_admin_every_rule_decides_something() -> None:
    reached = {next((at for at, (holds, _, _) in enumerate(RULES) if holds(facts)), -1) for facts in ALL}
    assert reached == {-1, *range(len(RULES))}
