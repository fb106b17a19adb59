"""Implements `sluice backfill` and `sluice repair`: builds requests from the options, and shows plans, progress and results.
`cdc_engine.instance.rows` and `orchestration.run.rows` execute the requests.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.instance.rows.plan import Plan
from sluice.cdc_engine.progress import BINLOG, ReadProgress
from sluice.console.lake.operation import ports_of_command, results
from sluice.console.lake.progress_bars import ProgressBars
from sluice.console.source.query import require_destination
from sluice.console.toolchain.errors import SetupError
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.run.rows.backfill import Done, plan_backfill, run_backfill
from sluice.orchestration.run.rows.job import RowsConfig, backfill_of
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.repair import Repaired, TableRepair, plan_repair, run_repair
from sluice.orchestration.run.rows.request import BackfillRequest, RepairRequest, RowsListener

MIB = 1 << 20


def backfill_request(config: SluiceConfig, given: RowsConfig) -> BackfillRequest:
    """Returns the request for the backfill that the command's options describe. The options follow the same rules as the config of
    Dagster's backfill job. Raises ConfigurationError if an option is invalid, and SetupError if the interval cannot be found.
    """
    require_destination(config, given.destination)
    try:
        return backfill_of(config, given, time.time_ns() // 1000, Path.cwd())
    except MergeFailedError as error:
        raise SetupError(str(error)) from error


def backfill_plan(config: SluiceConfig, request: BackfillRequest) -> Plan:
    """Returns the plan of a backfill. Raises ConfigurationError if the destination does not exist, PositionLostError if the source no
    longer has a requested time or GTID, and SluiceError for other expected errors.
    """
    require_destination(config, request.destination)
    return plan_backfill(config, request)


def backfill_sentences(made: Plan) -> Iterator[str]:
    """Yields lines about the plan of a backfill: the interval, the binlog files that the backfill reads, and the number of changes."""
    times = f"from {made.from_time} to {made.to_time or 'now'}"
    yield (
        f"{made.destination}: changes of {made.gtids}, {times}"
        if made.gtids
        else f"{made.destination}: changes {times}"
    )
    yield f"earliest time at which a backfill can start: {made.earliest_time} (binlog file {made.earliest_file})"
    size, files = made.bytes / MIB, f"{made.files[0]} to {made.files[-1]}" if made.files else "none"
    yield f"to read: {size:.1f} MiB of binlog, {len(made.files)} files ({files}), from {made.begin} to {made.read_to}"
    how = "counted" if made.counted else f"estimated from the first {made.sample_bytes / MIB:.1f} MiB"
    others = ", including changes of other transactions between them" if made.gtids else ""
    yield f"changes: {made.changes} ({how}{others}); time: about {made.seconds:.0f} s"


def backfill_rows(made: Plan) -> Table:
    shown = Table("table", "changes", "schema history", "statements", "")
    for each in made.tables:
        back = "reaches back" if each.reaches_back else "begins later"
        changes = str(each.changes) if made.counted else f"~{each.changes}"
        shown.add_row(each.name, changes, back, str(len(each.statements)), each.refused or "ready")
    return shown


def backfill(config: SluiceConfig, request: BackfillRequest, to: Console) -> Done:
    """Runs a backfill, and prints the progress to `to`. Raises SetupError if a table could not be merged, and SluiceError for other
    expected errors.
    """
    require_destination(config, request.destination)
    with _run(config, request.destination, to) as run:
        return run_backfill(run, request)


@contextlib.contextmanager
def _run(config: SluiceConfig, destination: str, to: Console) -> Iterator[RowsRun]:
    """Yields the `RowsRun` with which a backfill or repair runs in the process of a command. The messages of the `RowsRun` are printed to
    `to`. If `to` is a terminal, a progress bar is also shown.
    """
    say = functools.partial(to.print, markup=False, highlight=False, soft_wrap=True)
    with _bars(to) as progress, ports_of_command() as ports:
        listener = RowsListener(say=say, progress=progress)
        yield RowsRun(ports=ports, config=config, destination=destination, listener=listener)


@contextlib.contextmanager
def _bars(to: Console) -> Iterator[Callable[[ReadProgress], None]]:
    """Yields a function that shows the progress on a bar. If `to` is not a terminal, the function does nothing."""
    if not to.is_terminal:
        yield lambda _: None
        return
    with ProgressBars(to, BINLOG, transient=True) as bars:
        yield functools.partial(bars.show, "reading")


def backfill_outcome(done: Done) -> Table:
    """Formats the result of a backfill, one line per table."""
    if made := done.rebuilt:
        shown = Table("table", "of", "rows", "up to", "path")
        shown.add_row(made.table, f"{made.of}, from version {made.version} on", str(made.rows), made.up_to, made.path)
        return shown
    return results(done.outcomes, done.refused)


def repair_plan(config: SluiceConfig, request: RepairRequest) -> tuple[TableRepair, ...]:
    """Returns the plan of a repair. Raises ConfigurationError if the destination does not exist, and SluiceError if the source or the lake
    does not answer.
    """
    require_destination(config, request.destination)
    return plan_repair(config, request)


def repair_rows(planned: Sequence[TableRepair]) -> Table:
    """Formats the differences that a repair would correct, one line per table."""
    shown = Table("table", "chunks", "missing", "surplus", "doubled", "other values", "")
    for each in planned:
        counts = [str(each.keys.get(kind, "")) for kind in ("missing", "surplus", "doubled", "value")]
        shown.add_row(each.name, str(len(each.result.chunks_different)), *counts, each.refused or "ready")
    return shown


def repair(config: SluiceConfig, request: RepairRequest, planned: tuple[TableRepair, ...], to: Console) -> Repaired:
    """Runs a repair, and prints the progress to `to`. `planned` is the plan that `repair_plan` returned for this request. Raises SetupError
    if a table could not be merged, and SluiceError for other expected errors.
    """
    with _run(config, request.destination, to) as run:
        return run_repair(run, request, planned)


def repair_outcome(done: Repaired) -> Table:
    """Formats the result of a repair, one line per table."""
    return results(done.outcomes, done.refused, done.after)
