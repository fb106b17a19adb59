"""Defines the steps of a history: their names, their descriptions, and how a seed generates them. `world` executes them.

A step that is impossible does nothing, for example killing a run when there is none. So any part of a history is a history too, and a
failing history can be shortened.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Literal, get_args

from benchmarks.histories.faults import Fault, Kind, Part
from benchmarks.histories.source import Deed

Verb = Literal[
    "commit", "flush", "purge", "backup", "restore", "reset", "fail over", "follow", "rebuild", "disconnect",
    "read", "tick", "run", "flow", "stop", "die", "kill", "end run", "again", "lose lock", "wait", "go back",
    "wipe runs", "lose ledger", "restore ledger", "restore table", "drop table", "replace table", "take over",
]  # fmt: skip
Second = Literal["", "shard", "copy"]
KEYS = 4  # The number of keys, which is small so that each row changes often.


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The setup of a history.

    - With `gtids`, there are two servers with GTIDs, otherwise one server without GTIDs.
    - With `from_beginning`, a destination without a cursor starts at the beginning of the binlog.
    - `second` is "shard" for another destination with its own source that writes the same tables. `second` is "copy" for a second
    installation of the same destination on the same lake.
    - `store` is `store.kind` in conf/.
    """

    gtids: bool = True
    from_beginning: bool = False
    second: Second = ""
    store: str = "memory"

    def __str__(self) -> str:
        servers = "two servers with GTIDs, of which B is the standby of A" if self.gtids else "one server without GTIDs"
        start = "at the binlog's beginning" if self.from_beginning else "at the latest position"
        others = {
            "": "one destination",
            "shard": "two destinations, each with a source of its own, that write the same tables",
            "copy": "one destination, installed twice on the same lake",
        }[self.second]
        waits = "" if self.store == "memory" else f"; the store is {self.store}"
        return f"{servers}; {others}, which starts {start}{waits}"


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a history. `line` is the destination, 0 or 1. The meaning of `number` depends on the verb. `deeds` are the changes of a
    commit. `faults` occur during the step.
    """

    verb: Verb
    line: int = 0
    number: int = 0
    deeds: tuple[tuple[Deed, int], ...] = ()
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        where = " of the second destination" if self.line else ""
        return SENTENCES[self.verb](self) + where + "".join(f"; {fault}" for fault in self.faults)


@dataclasses.dataclass(frozen=True)
class History:
    scenario: Scenario
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join(
            [f"   {self.scenario}", *(f"{number:2d} {step}" for number, step in enumerate(self.steps, start=1))]
        )


def _deeds(step: Step) -> str:
    return "a transaction commits: " + ", ".join(f"{deed} {key}" for deed, key in step.deeds)


SENTENCES: dict[Verb, Callable[[Step], str]] = {
    "commit": _deeds,
    "flush": lambda _: "the source begins a new binlog file",
    "purge": lambda _: "the source's binlog is purged up to its last file",
    "backup": lambda _: "a backup of the source is made",
    "restore": lambda step: "the source is restored from its backup" + (", with a new uuid" if step.number else ""),
    "reset": lambda step: "the source's binlog is RESET" + (", gtid_purged set again" if step.number else ""),
    "fail over": lambda step: "the standby takes over" + ("" if step.number else " before it has caught up"),
    "follow": lambda _: "the standby catches up",
    "rebuild": lambda step: "the standby is rebuilt as a clone" + (", with a new uuid" if step.number else ""),
    "disconnect": lambda _: "the connection to the source is lost",
    "read": lambda step: f"the engine reads {step.number + 1} times",
    "tick": lambda step: "the sensor ticks" + (", and its answer is lost" if step.number else ""),
    "run": lambda _: "a run starts or continues",
    "flow": lambda _: "all processes run without a fault for a while",
    "stop": lambda _: "the engine host is stopped",
    "die": lambda _: "the engine host is killed",
    "kill": lambda _: "a run that hangs is killed",
    "end run": lambda _: "an operator ends a run, but the run's process continues",
    "again": lambda step: f"an operator executes run {step.number + 1} again",
    "lose lock": lambda _: "the run lock of a run that hangs is lost",
    "wait": lambda step: f"the clock jumps {step.number} s",
    "go back": lambda step: f"an operator sets the position back to the {step.number + 1}. acked one before",
    "wipe runs": lambda _: "Dagster's storage is wiped",
    "lose ledger": lambda _: "the engine host is stopped and meta.json is lost",
    "restore ledger": lambda step: (
        f"the engine host is stopped and meta.json is put back as it was {step.number + 1} writes ago"
    ),
    "restore table": lambda step: f"{_table(step)} of the lake is RESTOREd to {1 + step.number // 2} versions ago",
    "drop table": lambda step: f"the folder of {_table(step)} in the lake is deleted",
    "replace table": lambda step: f"{_table(step)} of the lake is rewritten by another program, with the same rows",
    "take over": lambda _: "the second installation starts",
}


def _table(step: Step) -> str:
    return "the table with a key" if step.number % 2 == 0 else "the table without a key"


@dataclasses.dataclass(frozen=True)
class Mix:
    """The weights of the verbs. `faults` is the share of steps of the pipeline that have a fault."""

    weights: dict[Verb, float]
    faults: float = 0.25
    seconds: tuple[Second, ...] = ("",)


PIPELINE: dict[Verb, float] = {
    "commit": 10, "flush": 1.5, "disconnect": 1, "read": 6, "tick": 7, "run": 6, "flow": 3, "stop": 0.5, "die": 1, "kill": 1,
    "end run": 0.7, "again": 0.7, "wait": 2,
}  # fmt: skip
FAILOVER: dict[Verb, float] = {"fail over": 3, "follow": 1, "rebuild": 0.7}
RENUMBERED: dict[Verb, float] = {"reset": 1.2, "purge": 0.7, "backup": 0.8, "restore": 0.8}
MISTAKES: dict[Verb, float] = {
    "wipe runs": 0.6,
    "lose ledger": 0.7,
    "restore ledger": 0.7,
    "go back": 0.6,
    "lose lock": 0.4,
}
LAKE: dict[Verb, float] = {"restore table": 0.7, "drop table": 0.4, "replace table": 0.3}
# The steps that together take a change through the pipeline. If they were drawn independently, most of them would do nothing.
CYCLE: tuple[Verb, ...] = ("commit", "read", "tick", "run")
CYCLES = 0.35
REWIND_FAILS = 0.4  # The share of staging faults after which the parser does not stop in time either.
EVERYTHING = Mix({**PIPELINE, **FAILOVER, **RENUMBERED, **MISTAKES, **LAKE}, seconds=("", "", "", "", "shard", "copy"))


def generate(seed: int, mix: Mix = EVERYTHING) -> History:
    """Returns the history that a seed generates."""
    chance = random.Random(seed)
    second = chance.choice(mix.seconds)
    scenario = Scenario(
        gtids=chance.random() < 0.75,
        from_beginning=chance.random() < 0.4,
        second=second,
    )
    verbs, weights = list(mix.weights), list(mix.weights.values())
    if second:
        verbs, weights = [*verbs, "take over"], [*weights, 3.0]
    # Some kinds of steps are left out, because a history with fewer kinds of steps gets further.
    left_out = set(chance.sample(verbs, chance.randint(0, len(verbs) // 2))) - {"commit", "read", "tick", "run", "flow"}
    weights = [0.0 if verb in left_out else weight for verb, weight in zip(verbs, weights, strict=True)]
    faults = chance.choice((0.0, mix.faults, mix.faults * 2))
    steps: list[Step] = []
    for _ in range(chance.randint(2, 18)):
        drawn = CYCLE if chance.random() < CYCLES else chance.choices(verbs, weights)
        line = int(bool(second) and chance.random() < 0.4)
        steps += [dataclasses.replace(_step(verb, chance, faults), line=line) for verb in drawn]
    return History(scenario, tuple(steps))


def _step(verb: Verb, chance: random.Random, faults: float) -> Step:
    number = 0
    deeds: tuple[tuple[Deed, int], ...] = ()
    found: tuple[Fault, ...] = ()
    match verb:
        case "commit":
            deeds = tuple((_deed(chance), chance.randint(1, KEYS)) for _ in range(chance.randint(1, 3)))
        case "read":
            number = chance.choice((0, 1, 5, 5))
        case "wait":
            number = chance.choice((1, 15, 60, 200, 4000, -300))
        case "again" | "restore table" | "drop table" | "replace table":
            number = chance.randint(0, 5)
        case "fail over":
            number = int(chance.random() < 0.8)
        case "restore" | "reset" | "rebuild" | "run":
            number = chance.randint(0, 1)
        case "tick":
            number = int(chance.random() < 0.08)
        case "go back" | "restore ledger":
            number = chance.randint(0, 8)
        case _:
            pass
    if chance.random() < faults:
        found = _faults(verb, chance)
    return Step(verb, 0, number, deeds, found)


def _deed(chance: random.Random) -> Deed:
    return chance.choices(get_args(Deed), (8, 3, 2, 5, 1, 1, 0.4))[0]  # type: ignore[no-any-return]


def _faults(verb: Verb, chance: random.Random) -> tuple[Fault, ...]:
    """Returns a random fault for a step with this verb, or none if no call in such a step can fail."""
    parts: dict[Verb, tuple[Part, ...]] = {
        "tick": ("ledger", "ledger", "staging", "storage", "source"),
        "read": ("source", "ledger"),
        "run": ("lake", "lake", "end", "record"),
    }
    if verb not in parts:
        return ()
    part = chance.choice(parts[verb])
    kinds: tuple[Kind, ...] = ("crash before", "crash after", "error before", "error after")
    if verb == "run":
        kinds = (*kinds, "stall", "stall", "stall")
    nth = 1 if part in ("end", "staging") else chance.randint(1, 4)
    fault = Fault(part, nth, chance.choice(kinds))
    if part == "staging" and chance.random() < REWIND_FAILS:
        return (fault, Fault("rewind", 1, "error before"))
    return (fault,)
