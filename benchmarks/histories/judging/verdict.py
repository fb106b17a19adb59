"""Judges a history. Runs all processes until nothing changes any more, then checks the guarantees.

At the end, the lake must equal the source, no key may have returned to an older change, and no image may be duplicated. Otherwise `sluice
status` must report a problem. The lake must never differ while `sluice status` reports that all is well.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dagster import DagsterRunStatus

from benchmarks.histories import stage_set
from benchmarks.histories.binlog_bytes import KEYED, KEYLESS
from benchmarks.histories.judging import stated_limits
from benchmarks.histories.source import Deed, Rows, changes_of
from benchmarks.histories.steps import History
from benchmarks.histories.world import Installation, World
from sluice.cdc_engine.errors import MetaError, NotContinuousError, SluiceError, StagingError
from sluice.cdc_engine.instance.status import write_status
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.status_file import STATUS_FILE
from sluice.console.status.report import find_problems, read_destination

ROUNDS_MAX = 14
ROUND_SECONDS = 400.0  # This time is longer than any pause between two attempts.
STEPS_MAX = 60
# If an engine remains in one of these states without a fault, production is broken, or the simulation no longer matches production and
# tests nothing. A full disk or a failed write is not among these states, because production recovers from it by itself.
DEFECTS = (SluiceError.code, MetaError.code, NotContinuousError.code, StagingError.code)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict about a history. `broken` says which guarantee was broken, or is empty if none was broken. `named` are the problems that
    production reports.
    """

    broken: str
    named: tuple[str, ...] = ()
    equal: bool = True

    @property
    def kept(self) -> bool:
        return not self.broken


def play(history: History, folder: Path) -> Verdict:
    """Runs a history to its end, and judges it. Call this only within `stage_set.staged`."""
    world = World(history.scenario, folder)
    stage_set.present(world)
    try:
        world.build()
        world.lines[0].tick()
        for step in history.steps:
            world.do(step)
        return _judge(world)
    finally:
        world.close()


def _judge(world: World) -> Verdict:
    for line in world.lines:
        for process in list(line.processes):
            line.kill(process)
    lines = [line for line in world.lines if line.started]
    rested = _rest(world, lines)
    # Runs check the owner and the ledger of a table only when they write the table. So each table gets another change, and a run writes it.
    if world.meddled or len(lines) > 1:
        for line in lines:
            deeds: list[tuple[Deed, int]] = [("put", 1), ("log", 1)]
            line.endpoint.current.commit(changes_of(line.endpoint.current, deeds, world.next_number))
        rested = _rest(world, lines)
    # The problems of the second destination count too, because it writes the same tables.
    named = tuple(sentence for line in lines for sentence in _problems(world, line))
    if world.refused:
        named = (*named, world.refused)
    defects = [sentence for sentence in named if any(f"is {code}:" in sentence for code in DEFECTS)]
    if defects:
        return Verdict(defects[0], named)
    if world.lake.violations:
        return Verdict(world.lake.violations[0], named)
    differences = [each for line in lines for each in _differences(world, line)]
    if differences and not named:
        limit = all(
            stated_limits.explains(line.endpoint, [row for row, _ in _differences(world, line)]) for line in lines
        )
        return Verdict("" if limit else f"no problem is reported, but {differences[0][1]}", named, equal=False)
    if not rested and not named:
        return Verdict("the installation never becomes idle, and reports no problem", named)
    return Verdict("", named, equal=not differences)


def _rest(world: World, lines: list[Installation]) -> bool:
    """Runs everything without faults until nothing changes any more. Returns False if that takes more than ROUNDS_MAX rounds."""
    before: object = None
    for _round in range(ROUNDS_MAX):
        world.clock.advance(ROUND_SECONDS)
        for line in lines:
            _undisturbed(line)
        now = [_signature(world, line) for line in lines]
        if now == before:
            return True
        before = now
    return False


def _undisturbed(line: Installation) -> None:
    line.tick()
    line.host.look()
    before: object = None
    for _round in range(STEPS_MAX):
        line.read()
        engine = line.host.engine
        parts = engine._parts if engine is not None else None
        now = (parts.parser.counters.bytes, parts.parser.state, parts.store.put_position) if parts is not None else None
        if now == before:
            break
        before = now
    line.read()  # After a silence, the parser stores the last empty transaction. So the engine reads once more.
    line.tick()
    for run in list(line.instance.runs):
        if run.job_name == line.job_name and run.status is DagsterRunStatus.QUEUED:
            line.start_run(run)
    line.tick()


def _signature(world: World, line: Installation) -> object:
    engine = line.host.engine
    status = engine.status() if engine is not None else None
    waiting = [run.status for run in line.instance.runs]
    versions = [(path, len(table.versions)) for path, table in sorted(world.lake.tables.items())]
    return (line.host.trouble, status and (status.state, status.position, status.cursor), waiting, versions)


def _problems(world: World, line: Installation) -> Iterator[str]:
    """Yields the problems that `sluice status` would report."""
    line.tick()
    if line.host.engine is not None:
        write_status(line.directory / STATUS_FILE, line.host.engine.status())
    status = read_destination(line.directory, line.destination, world.clock.time())
    yield from find_problems([{"name": "code server", "pid": 1, "alive": True}], [status])
    if line.host.engine is None and line.host.trouble:
        yield line.host.trouble


Difference = tuple[stated_limits.Row, str]  # The row that differs, and a sentence about it.


def _differences(world: World, line: Installation) -> Iterator[Difference]:
    rows = line.endpoint.current.rows
    yield from _keyed_differences(world, line, rows)
    yield from _log_differences(world, line, rows)
    try:
        ledger = read_ledger(line.directory)
    except SluiceError as error:
        yield NO_ROW, f"the ledger cannot be read: {error}"
        return
    if ledger.outstanding:
        yield NO_ROW, f"batch {ledger.outstanding[0].batch_id} waits for ever"


NO_ROW = ("", 0)


def _keyed_differences(world: World, line: Installation, rows: Rows) -> Iterator[Difference]:
    table = world.lake.tables.get(line.config.table_path(line.destination, "shop", "orders"))
    lake = {key: number for key, (number, _) in table.last.keyed.items()} if table else {}
    for key in sorted(lake.keys() | rows.keyed.keys()):
        if lake.get(key) != rows.keyed.get(key):
            yield (
                (KEYED, key),
                f"row {key} is change {rows.keyed.get(key)} in the source and {lake.get(key)} in the lake",
            )


def _log_differences(world: World, line: Installation, rows: Rows) -> Iterator[Difference]:
    table = world.lake.tables.get(line.config.table_path(line.destination, "shop", "audit"))
    lake = Counter(entry[:3] for entry in table.last.log) if table else Counter()
    source = Counter(rows.log)
    for entry in sorted((lake - source) + (source - lake)):
        yield (
            (KEYLESS, entry[1]),
            f"the image {entry} is {source[entry]} times in the source and {lake[entry]} times in the lake",
        )
