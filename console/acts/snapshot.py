"""Shows the snapshots of tables, for `sluice snapshot`. `cdc_engine.acts.snapshot` executes an operator's requests."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.progress import ROWS, duration
from sluice.cdc_engine.snapshot.record import SnapshotRecord, progress, progress_record
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotStep
from sluice.cdc_engine.states import EngineState, SnapshotState
from sluice.cdc_engine.status_file import engine_status
from sluice.console.acts.long_list import shortened
from sluice.console.acts.schema import directory_of
from sluice.console.lake.progress_bars import ProgressBars

LOOK_SECONDS = 1.0
# If there are too many snapshots to list, `sluice snapshot status` first lists the snapshots in these states, in this order.
RANK = (SnapshotState.FAILED, SnapshotState.READING, SnapshotState.READ, SnapshotState.WANTED)
COLORS = {SnapshotState.PUBLISHED: "green", SnapshotState.FAILED: "red", SnapshotState.CANCELED: "yellow"}


def is_lost(config: SluiceConfig, destination: str) -> bool:
    """Returns whether the destination's engine reports that its position is lost."""
    return engine_status(directory_of(config, destination)).get("state") == EngineState.POSITION_LOST


def require_all(destination: str, tables: Sequence[str], where: str) -> None:
    """Raises ActRefusedError if a request for snapshots names tables, or a condition for rows (`where`). Called if the position of the
    destination is lost: every table may lack changes, so all rows of all tables must be read.
    """
    if tables or where:
        raise ActRefusedError(
            f"the position of {destination} is lost, so every table may lack changes: re-snapshot all tables, "
            "without --tables and --where"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownSnapshot:
    """A table's snapshot, as `sluice snapshot status` shows it. `waits` says what the snapshot waits for, or is empty. `cascade_changes` is
    the number of buffered changes of parent tables. The publication needs these changes to compute the changes that foreign keys made to
    rows of this table.
    """

    destination: str
    record: SnapshotRecord
    waits: str
    cascade_changes: int = 0

    @property
    def says(self) -> str:
        """A message about the snapshot. The message says what the snapshot waits for. For a snapshot that does not wait, it has the reason
        in the snapshot's record instead, such as the error of a failed snapshot. The numbers of restarts and of buffered changes of parent
        tables follow. The message is empty if there is nothing to say.
        """
        sentences = [self.waits or self.record.reason]
        if self.record.restarts and self.record.is_open:
            sentences.append(f"restarted {self.record.restarts} times")
        if self.cascade_changes:
            sentences.append(
                f"{self.cascade_changes} changes of parent tables, whose foreign keys change rows of this table, are buffered"
            )
        return "; ".join(filter(None, sentences))

    def to_json(self, now: float) -> dict[str, Any]:
        """Returns the snapshot as JSON. Each key that ends in `_at` has the time, in seconds since 1970, at which the snapshot reached a
        step, or 0 if it has not reached this step.
        """
        record = self.record
        return {
            "destination": self.destination,
            "table": record.name,
            "state": record.state,
            "paused": record.paused,
            **progress_record(progress(record, now)),
            "chunks": record.chunks,
            "size_bytes": record.size_bytes,
            "restarts": record.restarts,
            "cascade_changes": self.cascade_changes,
            "wanted_at": record.wanted_at,
            "reading_at": record.reading_at,
            "read_at": record.read_at,
            "published_at": record.published_at,
            "where": record.where,
            "reason": record.reason,
            "waits": self.waits,
        }


def snapshots(config: SluiceConfig, destination: str = "") -> list[ShownSnapshot]:
    """Returns the snapshots of one destination, or of all destinations if `destination` is empty. Raises MetaError if the record store does
    not answer.
    """
    found = []
    for name in [destination] if destination else sorted(config.destinations):
        records = SnapshotRecords(directory_of(config, name))
        every = records.all()
        waits = _waits(config, name) if any(each.has_work for each in every) else {}
        found += [
            ShownSnapshot(
                destination=name,
                record=each,
                waits=waits.get(each.name, ""),
                cascade_changes=records.cascade_changes(each),
            )
            for each in every
        ]
    return found


def _waits(config: SluiceConfig, destination: str) -> dict[str, str]:
    """Returns table → why its snapshot waits, or "" if the snapshot does not wait. Leaves out the snapshots for which no work is left."""
    from sluice.cdc_engine.instance.tables.table_snapshots import decisions  # noqa: PLC0415  imports kernels, which takes a second

    return {
        record.name: decision.why if decision.step == SnapshotStep.WAIT else ""
        for record, decision in decisions(config, destination)
    }


def listed(shown: Sequence[ShownSnapshot]) -> tuple[list[ShownSnapshot], str]:
    """Returns at most LISTED_MAX of the snapshots, and a message about the snapshots that are left out, or "" if none is left out. Failed
    and open snapshots come first.
    """
    return shortened(shown, lambda each: str(each.record.state), RANK, "sluice snapshot status --verbose")


def render(shown: Sequence[ShownSnapshot], now: float) -> Table | Text:
    """Formats the snapshots for the terminal, one line each."""
    if not shown:
        return Text("no snapshot was requested yet; request one with `sluice snapshot start DESTINATION`")
    table = Table("destination", "table", "state", "rows", "of about", "percent", "rows/s", "time left", "message")
    for each in shown:
        made, record = progress(each.record, now), each.record
        state = f"{record.state}{' (paused)' if record.paused else ''}"
        table.add_row(
            each.destination,
            record.name,
            Text(state, COLORS.get(record.state, "")),
            f"{made.done}",
            f"{made.expected or ''}",
            "" if made.percent is None else f"{made.percent:.0f} %",
            f"{made.per_second:.0f}" if record.reading_at else "",
            "" if made.seconds_left is None or not record.is_open else duration(made.seconds_left),
            each.says,
        )
    return table


def described(record: SnapshotRecord, waits: str = "") -> str:
    """Returns the text next to a snapshot's progress bar. `waits` says what the snapshot waits for, and is empty if it does not wait."""
    return f"{record.name} {record.state}{': ' + waits if waits else ''}"


def follow(config: SluiceConfig, destination: str, screen: Console, pause: Callable[[float], None] = time.sleep) -> int:
    """Shows a progress bar for each snapshot of `destination`, or of all destinations if `destination` is empty. Ends when every snapshot
    is published, canceled or failed. Returns 1 if a snapshot failed, or else 0. Ctrl-C ends the display, and the snapshots continue.
    """
    with ProgressBars(screen, ROWS) as bars:
        while True:
            states = []
            for each in snapshots(config, destination):
                states.append(each.record.state)
                bars.show(each.record.name, progress(each.record, time.time()), described(each.record, each.waits))
            if not any(state.is_open and state != SnapshotState.FAILED for state in states):
                return 1 if SnapshotState.FAILED in states else 0
            pause(LOOK_SECONDS)
