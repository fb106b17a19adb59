"""Shows the progress of snapshots, backfills, repairs and the demo on a terminal, as bars with amount, percent, rate and remaining time."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from sluice.cdc_engine.progress import ReadProgress, Unit, figures


class ProgressBars:
    """Shows one bar per name during a `with` block. Other output appears above the bars. With `transient`, the bars are removed at the end
    of the block.
    """

    def __init__(self, screen: Console, unit: Unit, *, transient: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(24), _Figures())
        self._shown = Progress(*columns, console=screen, refresh_per_second=4, transient=transient)
        self._unit = unit
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBars:
        self._shown.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._shown.stop()

    def show(self, name: str, made: ReadProgress, description: str = "") -> None:
        """Creates or updates the bar of a name. `description` is the text next to the bar, by default the name. Figures appear when reading
        has begun.
        """
        if name not in self._bars:
            self._bars[name] = self._shown.add_task(name, total=None)
        self._shown.update(
            self._bars[name],
            completed=made.done,
            total=made.expected or None,
            description=description or name,
            figures=figures(made, self._unit) if made.percent is not None or made.done else "",
        )


class _Figures(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("figures", "")), "cyan")
