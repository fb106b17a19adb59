"""Shows open snapshots as bars on a terminal: rows, percent, rate, time left. Used by `snapshot.follow` and the demo."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from sluice.cdc_engine.snapshot.record import SnapshotRecord, progress


class SnapshotBars:
    """Shows one bar per table between `__enter__` and `__exit__`. Other output appears above the bars."""

    def __init__(self, screen: Console) -> None:
        self._shown = Progress(
            TextColumn("{task.description}"), BarColumn(24), _Figures(), console=screen, refresh_per_second=4
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> SnapshotBars:
        self._shown.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._shown.stop()

    def show(self, record: SnapshotRecord, waits: str = "") -> None:
        """Updates a table's bar. `waits`: what the snapshot waits for."""
        bar = self._bars.get(record.name)
        if bar is None:
            bar = self._bars[record.name] = self._shown.add_task(record.name, total=None)
        made = progress(record, time.time())
        self._shown.update(
            bar,
            completed=made.rows,
            total=made.rows_expected or None,
            description=f"{record.name} {record.state}{': ' + waits if waits else ''}",
            told=figures(record),
        )


def figures(record: SnapshotRecord) -> str:
    """Returns the progress of the reading in words; empty before it begins."""
    if not record.reading_at:
        return ""
    made = progress(record, time.time())
    of = f" of some {made.rows_expected:,}" if made.percent is not None and made.percent < 100 else ""
    parts = [f"{made.rows:,}{of} rows", f"{made.rows_per_second:,.0f} rows/s"]
    if made.percent is not None:
        parts.insert(1, f"{made.percent:.0f} %")
    if made.seconds_left:
        parts.append(f"{duration(made.seconds_left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Returns a duration in words."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class _Figures(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("told", "")), "cyan")
