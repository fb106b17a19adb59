"""Records the spans of a run in a file in the folder of the staged batch. When the engine settles the batch, it queues the spans, and a
thread sends them.

The run does not send its spans itself, because a collector that does not answer would delay the end of the run and the ack of the batch.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

import structlog

from sluice.cdc_engine.telemetry.spans import BATCH, RUN, Span, Value

log = structlog.get_logger()
PATTERN = "spans-{delivery}-*.json"


class RunSpans:
    """Collects the spans of one run for one delivery. `folder` is the folder of the staged batch, or None if no collector is configured.
    In this case, nothing is recorded.
    """

    def __init__(self, folder: Path | None, delivery: int, run: str) -> None:
        self._folder, self._delivery, self._run = folder, delivery, run
        self._begun, self._merged, self._path = time.time_ns(), list[Span](), (BATCH, f"{RUN} {run}")

    def merged(self, table: str, milliseconds: int, rows: int, way: str) -> None:
        """Records the span of a table's merge, which has just ended and took `milliseconds`. `way` says how the table was merged, for
        example "spark" or "small" (a small merge).
        """
        if self._folder is not None:
            now = time.time_ns()
            attributes: dict[str, Value] = {"sluice.table": table, "sluice.rows": rows, "sluice.way": way}
            path = (*self._path, table)
            self._merged.append(
                Span(
                    path=path,
                    name=f"merge {table}",
                    start_ns=now - milliseconds * 10**6,
                    end_ns=now,
                    attributes=attributes,
                )
            )

    def ended(self, error: str = "") -> None:
        """Adds the span of the whole run, and writes all spans to the file. Called when the run has ended its work on the delivery. `error`
        is why the run failed, or empty. If the file cannot be written, logs a line and raises no error, so that the batch does not fail.
        """
        if self._folder is None:
            return
        attributes: dict[str, Value] = {
            "sluice.run": self._run,
            "host.name": platform.node(),
            "process.pid": os.getpid(),
        }
        whole = Span(
            path=self._path, name=RUN, start_ns=self._begun, end_ns=time.time_ns(), attributes=attributes, error=error
        )
        name = PATTERN.format(delivery=self._delivery).replace("*", self._run[:8] or "by-hand")
        try:
            temporary = self._folder / f".{name}.tmp"
            temporary.write_text(json.dumps([each.to_json() for each in (whole, *self._merged)]))
            temporary.replace(self._folder / name)
        except OSError as failed:
            log.warning("spans_not_written", run=self._run, reason=failed.strerror)


def spans_of_runs(folder: Path, delivery: int) -> list[Span]:
    """Returns the spans that runs have recorded for a delivery. Skips files that cannot be read, and logs a line for each."""
    found: list[Span] = []
    for file in sorted(folder.glob(PATTERN.format(delivery=delivery))):
        try:
            found += [Span.from_json(each) for each in json.loads(file.read_bytes())]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("spans_not_read", file=str(file), reason=type(error).__name__)
    return found
