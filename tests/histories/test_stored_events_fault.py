"""Tests histories of destinations whose store is in files. Every guarantee is kept, and changes that the source purged after the engine had
read them are not lost.
"""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.histories.judging.bench import Stage
from benchmarks.histories.steps import History, Scenario, Step, generate

SEEDS = 40
# The first transaction is merged. Two transactions follow, each in its own binlog file. The engine reads them, but does not hand them out.
READ = (
    Step("commit", deeds=(("put", 1), ("put", 2))),
    Step("flow"),
    Step("commit", deeds=(("put", 2), ("put", 3))),
    Step("flush"),
    Step("commit", deeds=(("delete", 1), ("put", 4))),
    Step("read", number=8),
)
KILLED = (Step("die"), Step("purge"), Step("flow"))


@pytest.mark.parametrize("gtids", [True, False], ids=["GTIDs", "no GTIDs"])
def test_fault_a_killed_engine_continues_from_its_stored_events_where_the_source_purged_them(
    stage: Stage, gtids: bool
) -> None:
    """With the store in files, no change is lost. With the store in memory, the same history reports POSITION_LOST."""
    found = {
        kind: stage.play(History(Scenario(gtids=gtids, store=kind), (*READ, *KILLED))) for kind in ("memory", "file")
    }
    assert found["memory"].kept
    assert "POSITION_LOST" in str(found["memory"].named)
    assert (found["file"].broken, found["file"].named, found["file"].equal) == ("", (), True)


@pytest.mark.parametrize("kind", ["file", "mixed"])
def test_histories_of_every_store_keep_the_promise(stage: Stage, kind: str) -> None:
    for seed in range(SEEDS):
        history = generate(seed)
        stored = dataclasses.replace(history, scenario=dataclasses.replace(history.scenario, store=kind))
        found = stage.play(stored)
        assert found.kept, f"seed {seed}: {found.broken}\n{stage.shortest(stored)}"
