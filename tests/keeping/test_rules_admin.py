"""What is done about an engine: the whole table, by all that can be so."""

from __future__ import annotations

import itertools

import pytest

from cdc_engine.keeping.rules import RULES, Act, Facts, decide

ALL = [
    Facts(
        conf=conf, running=running, tried=tried, stopped=stopped, asked=asked, elsewhere=elsewhere, ended=ended, due=due
    )
    for conf, running, tried, asked in itertools.product(
        ("", "a", "b"), ("", "a"), ("", "a"), ("", "restart", "release")
    )
    for stopped, elsewhere, ended, due in itertools.product((False, True), repeat=4)
]


@pytest.mark.parametrize(
    ("facts", "act"),
    [
        (Facts(), Act.LEAVE),
        (Facts(conf="a"), Act.START),
        (Facts(conf="a", tried="a"), Act.LEAVE),  # it could not be started, a moment ago
        (Facts(conf="a", tried="a", due=True), Act.START),
        (Facts(conf="a", tried="a", due=True, elsewhere=True), Act.LEAVE),  # this process stands by
        (Facts(conf="a", tried="a", due=True, stopped=True), Act.LEAVE),
        (Facts(conf="b", tried="a"), Act.START),  # its file was mended
        (Facts(conf="a", running="a"), Act.LEAVE),
        (Facts(conf="b", running="a"), Act.RESTART),
        (Facts(running="a"), Act.STOP),
        (Facts(conf="a", running="a", stopped=True), Act.STOP),
        (Facts(conf="b", tried="a", stopped=True), Act.LEAVE),
        (Facts(conf="a", running="a", asked="restart"), Act.RESTART),
        (Facts(conf="a", tried="a", asked="restart"), Act.RESTART),  # it ended by itself
        (Facts(conf="a", tried="a", asked="restart", elsewhere=True), Act.LEAVE),
        (Facts(conf="a", running="a", asked="release"), Act.RELEASE),
        (Facts(conf="a", tried="a", asked="release", elsewhere=True), Act.LEAVE),
        (Facts(conf="a", running="a", tried="a", ended=True), Act.START),  # whether a tick comes or not
        (Facts(conf="a", running="a", stopped=True, ended=True), Act.STOP),
    ],
)
def test_admin_what_is_done_about_an_engine(facts: Facts, act: Act) -> None:
    assert decide(facts)[0] is act


def test_admin_nothing_runs_that_conf_or_an_operator_does_not_want() -> None:
    for facts in ALL:
        act, why = decide(facts)
        assert why
        unwanted = not facts.conf or facts.stopped
        assert (act is Act.STOP) == (unwanted and bool(facts.running)), facts
        assert not unwanted or act in {Act.STOP, Act.LEAVE}, facts


def test_admin_an_engine_that_is_as_it_should_be_is_left_alone() -> None:
    for facts in ALL:
        if facts.conf and facts.running == facts.conf and not (facts.stopped or facts.asked or facts.ended):
            assert decide(facts)[0] is Act.LEAVE


def test_admin_every_rule_decides_something() -> None:
    reached = {next((at for at, (holds, _, _) in enumerate(RULES) if holds(facts)), -1) for facts in ALL}
    assert reached == {-1, *range(len(RULES))}
