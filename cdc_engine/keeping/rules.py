"""Decides by a list of rules whether one engine is started, restarted, stopped or released to another host. Pure: `keeper` collects the
facts, and carries out the decision.

The first rule that matches decides. A decision depends only on the present facts, not on earlier decisions. So after a crash, the next
decision does what the earlier one did not complete.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable


class KeeperAct(enum.StrEnum):
    LEAVE = "leave"
    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RELEASE = "release"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeeperFacts:
    """The facts about one destination in one process, from which `decide` chooses.

    - `conf`: digest of the destination's current settings, or empty if the destination is not in conf/.
    - `running`: digest of the settings with which this process started the destination's engine. Empty if this process has no such engine.
      `tried`: digest of the settings with which a start was last attempted.
    - `stopped`: whether an operator has requested that the engine stays stopped, or `served` excludes the destination from this process.
      `requested`: an operator's request that is executed once ("restart" or "release"), or empty.
    - `elsewhere`: whether another process holds the destination's lease.
    - `ended`: whether the engine in this process has ended by itself, because another source must be read or its lease is lost.
    - `due`: whether no engine runs in this process, and the pause after the last attempt to start one is over.
    """

    conf: str = ""
    running: str = ""
    tried: str = ""
    stopped: bool = False
    requested: str = ""
    elsewhere: bool = False
    ended: bool = False
    due: bool = False


# (condition, what to do, reason as the end of a sentence). The first rule whose condition is true decides.
RULES: tuple[tuple[Callable[[KeeperFacts], bool], KeeperAct, str], ...] = (
    (
        lambda f: not f.conf and bool(f.running),
        KeeperAct.STOP,
        "the file of the destination was removed from conf/destinations",
    ),
    (lambda f: not f.conf, KeeperAct.LEAVE, "the destination is not in conf/"),
    (lambda f: f.stopped and bool(f.running), KeeperAct.STOP, "an operator stopped the destination"),
    (lambda f: f.stopped, KeeperAct.LEAVE, "an operator stopped the destination"),
    (
        lambda f: bool(f.requested) and f.elsewhere and not f.running,
        KeeperAct.LEAVE,
        "the process that runs the engine executes the operator's request",
    ),
    (
        lambda f: f.requested == "release" and bool(f.running),
        KeeperAct.RELEASE,
        "an operator gives the destination to another host",
    ),
    (lambda f: f.requested == "restart", KeeperAct.RESTART, "an operator restarts the destination"),
    (
        lambda f: bool(f.running) and f.running != f.conf,
        KeeperAct.RESTART,
        "the file of the destination in conf/destinations has changed",
    ),
    (lambda f: f.ended, KeeperAct.START, "the engine ended, because it switches to another source or lost its lease"),
    (lambda f: not f.running and f.tried != f.conf, KeeperAct.START, "the destination is in conf/destinations"),
    (lambda f: not f.running and f.due and not f.elsewhere, KeeperAct.START, "no process runs the engine"),
)


def decide(facts: KeeperFacts) -> tuple[KeeperAct, str]:
    """Returns what to do about an engine, and the reason."""
    return next(((act, why) for holds, act, why in RULES if holds(facts)), (KeeperAct.LEAVE, "nothing has changed"))
