"""Runs thousands of histories by seed, for `sluice bench histories`, and shortens those that break a guarantee.

`tests/histories` runs some hundreds. On every machine, a seed gives the same history.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from benchmarks.histories import stage_set
from benchmarks.histories.judging import verdict
from benchmarks.histories.judging.shrink import shortest
from benchmarks.histories.judging.verdict import Verdict
from benchmarks.histories.steps import EVERYTHING, History, Mix, generate

CHUNK = 50  # A worker process runs this many histories per call.
SHOWN_MAX = 5  # At most this many histories that broke a guarantee are shortened.


class Stage:
    """Runs histories, one after another."""

    def __init__(self, folder: Path) -> None:
        # All histories use the same path, because messages contain the path and must not differ.
        self._folder = folder / "history"

    def play(self, history: History) -> Verdict:
        try:
            return verdict.play(history, self._folder)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def shortest(self, history: History) -> History:
        """Returns the shortest version of a history that still breaks a guarantee."""
        return shortest(history, lambda each: not self.play(each).kept)


@contextmanager
def stage() -> Iterator[Stage]:
    with stage_set.staged() as folder:
        yield Stage(folder)


@dataclasses.dataclass(frozen=True)
class Count:
    """The results of some histories. `broken` has, for each history that broke a guarantee, its seed and how it broke the guarantee.
    `stopped` is the number of histories in which production reported a problem.
    """

    played: int = 0
    stopped: int = 0
    broken: tuple[tuple[int, str], ...] = ()
    reasons: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Count) -> Count:
        reasons = Counter(dict(self.reasons)) + Counter(dict(other.reasons))
        return Count(
            self.played + other.played,
            self.stopped + other.stopped,
            (*self.broken, *other.broken),
            tuple(reasons.most_common()),
        )


def play_seeds(seeds: Iterable[int], mix: Mix = EVERYTHING) -> Count:
    """Runs the histories of the seeds in this process. Returns their results."""
    count = Count()
    with stage() as here:
        for seed in seeds:
            found = here.play(generate(seed, mix))
            broken = () if found.kept else ((seed, found.broken),)
            reasons = Counter(sentence.split(":")[0] for sentence in found.named)
            count += Count(1, int(bool(found.named)), broken, tuple(reasons.items()))
    return count


def run(seed: int, count: int, json_file: Path | None) -> int:
    """Runs `count` histories from `seed` on, and prints the results. Returns the number of histories that broke a guarantee."""
    began = time.monotonic()
    total = Count()
    chunks = [range(at, min(at + CHUNK, seed + count)) for at in range(seed, seed + count, CHUNK)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for each in pool.map(play_seeds, chunks):
            total += each
    seconds = time.monotonic() - began
    rate = total.played / seconds
    print(f"{total.played} histories in {seconds:.0f} s ({rate:.0f} a second): {len(total.broken)} broke a guarantee,")
    print(f"{total.stopped} ended in a state that names the problem")
    for reason, times in total.reasons:
        print(f"  {times:6d} {reason}")
    _show(total.broken[:SHOWN_MAX])
    if json_file is not None:
        record = {**dataclasses.asdict(total), "seed": seed, "seconds": seconds, "per_second": rate}
        json_file.write_text(json.dumps(record, indent=1) + "\n")
    return len(total.broken)


def _show(broken: Sequence[tuple[int, str]]) -> None:
    with stage() as here:
        for seed, sentence in broken:
            print(f"seed {seed}: {sentence}")
            found = here.shortest(generate(seed))
            print(f"the shortest history with the same failure:\n{found}\n=> {here.play(found).broken}\n{found!r}")
