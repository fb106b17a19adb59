"""Decides what to do about one engine: a table of rules over facts. Pure; `keeper` collects the facts and acts.

The first matching rule decides. A crash between two acts is handled by the next look, because decisions depend on the present state only.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable


class Act(enum.StrEnum):
    LEAVE = "leave"
    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RELEASE = "release"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of one destination in one process.

    `conf`: digest of its file in use; empty if there is none. `running`: digest of the file from which its engine here was made; empty if
    none runs or starts here. `tried`: digest of the file with which the last start was tried. `stopped`: by an operator, permanently.
    `asked`: an operator's order, or empty. `elsewhere`: another process holds the lease. `ended`: the engine here has ended by itself,
    because another source is to be read or its lease is lost. `due`: nothing runs here, and the pause after the last start attempt is
    over.
    """

    conf: str = ""
    running: str = ""
    tried: str = ""
    stopped: bool = False
    asked: str = ""
    elsewhere: bool = False
    ended: bool = False
    due: bool = False


# (condition, act, reason as the end of a sentence)
RULES: tuple[tuple[Callable[[Facts], bool], Act, str], ...] = (
    (lambda f: not f.conf and bool(f.running), Act.STOP, "its file is gone from conf/destinations"),
    (lambda f: not f.conf, Act.LEAVE, "it is not in conf/"),
    (lambda f: f.stopped and bool(f.running), Act.STOP, "an operator stopped it"),
    (lambda f: f.stopped, Act.LEAVE, "an operator stopped it"),
    (lambda f: bool(f.asked) and f.elsewhere and not f.running, Act.LEAVE, "that is for the process that has it"),
    (lambda f: f.asked == "release" and bool(f.running), Act.RELEASE, "an operator wants another host to have it"),
    (lambda f: f.asked == "restart", Act.RESTART, "an operator wants it"),
    (lambda f: bool(f.running) and f.running != f.conf, Act.RESTART, "its file in conf/destinations has changed"),
    (lambda f: f.ended, Act.START, "it ended: another source is to be read, or its lease was lost"),
    (lambda f: not f.running and f.tried != f.conf, Act.START, "conf/destinations has it"),
    (lambda f: not f.running and f.due and not f.elsewhere, Act.START, "no process has it"),
)


def decide(facts: Facts) -> tuple[Act, str]:
    """Returns what to do about an engine, and why."""
    return next(((act, why) for holds, act, why in RULES if holds(facts)), (Act.LEAVE, "all is as it should be"))
