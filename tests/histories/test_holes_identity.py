"""Tests known gaps in the identities of stream, ledger and table, with one simulated history for each gap. Before the gap was closed, its
history broke a guarantee.
"""

from __future__ import annotations

import pytest

from benchmarks.histories.faults import Fault
from benchmarks.histories.judging.bench import Stage
from benchmarks.histories.source import Deed
from benchmarks.histories.steps import History, Scenario, Step

NOT_ENDED = Fault("end", 1, "error before")
NOT_STAGED = Fault("staging", 1, "error after")
NOT_REWOUND = Fault("rewind", 1, "error before")


def commit(deed: Deed = "put", key: int = 1, line: int = 0) -> Step:
    return Step("commit", line, deeds=((deed, key),))


READ, TICK, FLOW, DIE, FAIL_OVER = (
    Step("read", number=5),
    Step("tick"),
    Step("flow"),
    Step("die"),
    Step("fail over", number=1),
)
# A run that merges its batch, but ends as a failure.
MERGED_AND_FAILED = (READ, TICK, Step("run", faults=(NOT_ENDED,)))

MERGED = (READ, TICK, Step("run"))

HOLES: dict[str, tuple[Scenario, tuple[Step, ...]]] = {
    "A1 an epoch is used twice": (
        Scenario(),
        (
            *(commit(), FLOW, DIE, FAIL_OVER, TICK, READ),
            *(commit(), *MERGED_AND_FAILED, DIE, FAIL_OVER, commit()),
        ),
    ),
    "A2 a table without a key doubles across epochs": (
        Scenario(),
        (commit("log"), *MERGED_AND_FAILED, DIE, FAIL_OVER),
    ),
    "A2 changes that the new server never had stay": (
        Scenario(),
        (commit(), *MERGED_AND_FAILED, Step("fail over"), DIE),
    ),
    "A3 two destinations write one table": (
        Scenario(second="shard"),
        (Step("take over"), commit(), FLOW, commit(line=1)),
    ),
    "A3 a table written anew without its owner, for a second installation": (
        Scenario(from_beginning=True, second="copy"),
        (commit("log"), FLOW, Step("replace table", number=1), Step("take over"), Step("flow", 1)),
    ),
    "A4 a lost ledger begins at the latest place": (
        Scenario(),
        (commit(), Step("lose ledger")),
    ),
    "A4 an old success acks a batch of a new ledger": (
        Scenario(gtids=False, from_beginning=True),
        (commit(), FLOW, Step("lose ledger"), Step("reset"), commit()),
    ),
    "A4 a copy of the ledger from before its first start": (
        Scenario(),
        (commit(), Step("restore ledger", number=8)),
    ),
    "A4 an older copy of the ledger, and a failover": (
        Scenario(),
        (FLOW, commit("log"), *MERGED, Step("restore ledger"), FAIL_OVER),
    ),
    "A5 RESET and the same file again": (
        Scenario(gtids=False),
        (commit(), FLOW, Step("reset"), commit(), commit()),
    ),
    "A5 RESET with GTIDs that are used again": (
        Scenario(),
        (commit(), FLOW, Step("reset"), commit(key=2), commit(key=3), commit(key=4)),
    ),
    "A5 restored from a backup": (
        Scenario(),
        (commit(), Step("backup"), commit(), FLOW, Step("restore"), *(commit(key=key) for key in (2, 3, 4))),
    ),
    "A5 restored from a backup, and purged past the cursor": (
        Scenario(),
        (
            *(commit(), Step("backup"), commit(), FLOW, DIE, Step("restore"), Step("flush")),
            *(Step("purge"), *(commit(key=key) for key in (2, 3, 4))),
        ),
    ),
    "A6 RESTORE": (
        Scenario(),
        (commit(), FLOW, Step("restore table")),
    ),
    "A6 a folder deleted": (
        Scenario(),
        (commit("log"), FLOW, Step("drop table", number=1)),
    ),
    "A7 the gap check sleeps across epochs": (
        Scenario(),
        (
            *(commit(), FLOW, DIE, FAIL_OVER, TICK),
            *(commit(key=2), READ, Step("wait", number=60), commit(key=3)),
            *(Step("tick", faults=(NOT_STAGED, NOT_REWOUND)), commit(key=4)),
        ),
    ),
}


# Beginning of a history's name → the state that Sluice must report after the history. Empty if Sluice must report none.
NAMED = {
    "A1": "",
    "A2 a table": "",
    "A2 changes that": "POSITION_LOST",
    "A3 two": "TABLE_OWNED",
    "A3 a table": "TABLE_UNOWNED",
    "A4": "LEDGER_LOST",
    "A4 an older": "TABLE_AHEAD",
    "A5": "POSITION_LOST",
    "A6 RESTORE": "TABLE_RESTORED",
    "A6 a folder": "TABLE_MISSING",
    "A7": "",  # It is read again automatically.
}


@pytest.mark.parametrize("hole", HOLES)
def test_histories_of_identity_keep_the_promise(stage: Stage, hole: str) -> None:
    history = History(*HOLES[hole])
    found = stage.play(history)
    assert found.kept, f"{found.broken}\n{history}"
    state = NAMED[max((each for each in NAMED if hole.startswith(each)), key=len)]
    assert bool(found.named) == bool(state), found.named
    assert not state or any(state in sentence for sentence in found.named), found.named
