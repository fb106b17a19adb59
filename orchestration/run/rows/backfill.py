"""Applies the changes of a past interval again. The jobs in `job.py` and the command `sluice backfill` call this module.

A backfill chooses the keys that changed in the interval. Over a connection of its own, it reads the source's changes from the interval's
start to the current end of the binlog, and `operation.py` merges the last change of each chosen key. The backfill does not stop reading at
the interval's end, because the last change of the interval may be older than the row in the lake.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.batch_manifest.table_report import TableReport
from sluice.orchestration.run.rows.into import RebuiltTable, interval_of, path_of, run_into
from sluice.orchestration.run.rows.operation import RowsRun, operate
from sluice.orchestration.run.rows.request import BackfillRequest, counts_of

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.instance.rows.plan import Plan
    from sluice.cdc_engine.instance.rows.work import BackfillReading
    from sluice.spark_jobs.rows.fold import Read
    from sluice.spark_jobs.staged_batch import Backfill


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """The result of a backfill. `begin` and `end` are the positions that limit the interval. `read_to` is the position up to which changes
    were read. `refused` has the reason for each "database.table" that was left out. `rebuilt` is the separate table that was built, if one
    was requested.
    """

    begin: str
    end: str
    read_to: str
    outcomes: tuple[TableReport, ...]
    refused: dict[str, str]
    rebuilt: RebuiltTable | None = None

    def to_json(self) -> dict[str, Any]:
        tables = [counts_of(each) for each in self.outcomes]
        positions = {"begin": self.begin, "end": self.end, "read_to": self.read_to}
        rebuilt = {"rebuilt": dataclasses.asdict(self.rebuilt)} if self.rebuilt else {}
        return {**positions, "tables": tables, "refused": self.refused, **rebuilt}


def plan_backfill(config: SluiceConfig, request: BackfillRequest) -> Plan:
    """Returns the plan of a backfill and changes nothing. Raises SluiceError, with a message for users, if the backfill is impossible."""
    from sluice.cdc_engine.instance.rows.plan import make_plan  # noqa: PLC0415  imports the engine's packages

    name = request.destination
    return make_plan(
        config.destinations[name], config.destination_dir(name), interval_of(request), time.time_ns() // 1000
    )


def run_backfill(run: RowsRun, request: BackfillRequest) -> Done:
    """Reads the changes, and merges them or builds the requested table from them. Raises SluiceError or MergeFailedError, with a message
    for users.
    """
    from sluice.cdc_engine.instance.rows.work import folder_of  # noqa: PLC0415  imports the engine's packages

    run.listener.say(str(request))
    if request.into:
        path_of(run.config, request)
        with folder_of(run.directory, run.wait_seconds) as folder:
            return _done(*run_into(run.config, request, run.listener, folder))
    backfill = _Backfill(run, request)
    outcomes = operate(run, backfill)
    return _done(backfill.reading, None, outcomes)


def _done(
    reading: BackfillReading,
    rebuilt: RebuiltTable | None,
    outcomes: Sequence[TableReport] = (),
) -> Done:
    return Done(
        begin=str(reading.interval.begin),
        end=str(reading.end),
        read_to=str(reading.read_to),
        outcomes=tuple(outcomes),
        refused=dict(reading.refused),
        rebuilt=rebuilt,
    )


class _Backfill:
    """Implements `operation.RowsOperation` for a backfill. `read` sets `reading`."""

    leaves_out = False
    reading: BackfillReading

    def __init__(self, run: RowsRun, request: BackfillRequest) -> None:
        self._run, self._request = run, request

    @property
    def refused(self) -> dict[str, str]:
        return self.reading.refused

    @property
    def marks(self) -> Backfill:
        from sluice.spark_jobs.staged_batch import Backfill  # noqa: PLC0415

        from_us, to_us = self.reading.times
        return Backfill(backfill_id=self.reading.folder.name, from_us=from_us, to_us=to_us)

    def read(self, folder: Path) -> BackfillReading:
        from sluice.cdc_engine.instance.rows.work import BackfillReading  # noqa: PLC0415

        run, request = self._run, self._request
        self.reading = reading = BackfillReading(
            run.config.destinations[run.destination],
            run.directory,
            interval_of(request),
            folder,
            now_us=time.time_ns() // 1000,
            progress=run.listener.progress,
        )
        reading.read()
        run.listener.say(
            f"the binlog was read from {reading.interval.begin} to {reading.read_to}: {len(reading.tables)} tables have changes"
        )
        return reading

    def rows(self, reading: BackfillReading) -> dict[str, Read | None]:
        for name, why in reading.refused.items():
            self._run.listener.say(f"{name} is left out: {why}")
        if not reading.tables:
            self._run.listener.say(
                "no table has changes in the interval, except tables that are left out: nothing to merge"
            )
        return dict.fromkeys(reading.tables)
