"""Formats `sluice status` for a terminal: problems first, and no more lines than the screen has.

Without a terminal, and with `--verbose`, `report.render` shows everything. If lines do not fit the screen, a last line says how many are
left out, so that nothing is dropped silently.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from sluice.cdc_engine.states import SnapshotState
from sluice.console.status.consumers import shown_lag
from sluice.console.status.report import WELL, DestinationStatus, StatusReport, well

MORE = "`sluice status --verbose` shows everything"
# Destinations get at most a quarter of the screen's lines, and snapshots at most an eighth.
DESTINATIONS_SHARE, SNAPSHOTS_SHARE = 4, 8
PROBLEMS_MIN, SENTENCE_LINES_MIN = 3, 4  # The minimum numbers of lines for all problems, and for one problem.
COLUMNS_MIN = 20
HEADINGS = ("destination", "state", "lag", "rows/s", "kept", "last ack", "in flight", "stopped")


def screenful(report: StatusReport, columns: int, rows: int) -> list[Text]:
    """Returns at most `rows` - 1 lines of at most `columns` characters, so that one line of the screen is left for the shell's prompt."""
    columns = max(columns, COLUMNS_MIN)
    below = [
        *_destinations(report.destinations, rows),
        *_snapshots(report.destinations, rows),
        _processes(report),
        *([Text(report.conf)] if report.conf else []),
        Text(MORE),
    ]
    # Two lines are left free: one for the summary, and one for the prompt.
    kept = max(PROBLEMS_MIN, rows - 2 - len(below))
    warnings = _sentences([f"! {each}" for each in report.warnings], columns, max(1, kept // 3), "yellow")
    problems = _sentences([f"✗ {each}" for each in report.problems], columns, kept - len(warnings), "red")
    lines = [_verdict(report), *problems, *warnings, *below]
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
    return lines[: max(1, rows - 1)]


def _verdict(report: StatusReport) -> Text:
    if not report.problems:
        return well(report)
    stopped = sum(len(each.stopped_tables) for each in report.destinations)
    tables = f", {stopped} stopped table(s)" if stopped else ""
    return Text(f"{len(report.problems)} problem(s){tables}, {len(report.warnings)} warning(s)", "red")


def _sentences(sentences: Sequence[str], columns: int, lines_max: int, style: str) -> list[Text]:
    """Returns the lines of as many sentences as fit into `lines_max` lines of `columns` characters. If some are left out, the last line
    says how many. The end of a sentence that needs too many lines is replaced by "…".
    """
    shown: list[str] = []
    most = max(SENTENCE_LINES_MIN, (lines_max - 1) // max(1, len(sentences)))
    most = max(1, min(most, lines_max - 1))
    for number, sentence in enumerate(sentences):
        wrapped = textwrap.wrap(sentence, columns, subsequent_indent="  ", max_lines=most, placeholder=" …")
        last = number == len(sentences) - 1
        if len(shown) + len(wrapped) + (not last) > lines_max:
            shown = [*shown, f"{sentence[0]} … and {len(sentences) - number} more"]
            break
        shown += wrapped
    return [Text(line, style) for line in shown]


def _destinations(destinations: Sequence[DestinationStatus], rows: int) -> list[Text]:
    """Returns a line of headings, and a line for each destination, with problems first. If not all destinations fit, the last line says how
    many are left out.
    """
    ordered = sorted(destinations, key=lambda one: (one.state in WELL and not _needs_help(one), one.name))
    most = max(1, rows // DESTINATIONS_SHARE)
    shown = ordered[:most]
    cells = [HEADINGS, *(_cells(one) for one in shown)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    lines = [
        Text("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()) for row in cells
    ]
    for line, one in zip(lines[1:], shown, strict=True):
        line.stylize("red" if _needs_help(one) or one.state not in WELL else "")
    left = ordered[most:]
    if left:
        worst = max((one.lag_seconds for one in left if one.lag_seconds is not None), default=None)
        lag = "" if worst is None else f"; the largest lag of these destinations is {shown_lag(worst)}"
        lines.append(Text(f"… and {len(left)} more destinations{lag}"))
    return lines if destinations else [Text("conf/ has no destination: create one with `sluice init`", "yellow")]


def _needs_help(one: DestinationStatus) -> bool:
    return bool(one.stopped_tables or one.troubles or one.waiting)


def _cells(one: DestinationStatus) -> tuple[str, ...]:
    kept = "" if one.retention_left_hours is None else f"{one.retention_left_hours:.0f} h"
    ack = "never" if one.ack_age_seconds is None else f"{one.ack_age_seconds:.0f} s"
    rows = sum(int(batch["rows"] or 0) for batch in one.outstanding)
    stopped = str(len(one.stopped_tables) or "")
    return (
        one.name,
        one.state,
        shown_lag(one.lag_seconds),
        f"{one.rows_per_second:.0f}",
        kept,
        ack,
        f"{rows} rows",
        stopped,
    )


def _snapshots(destinations: Sequence[DestinationStatus], rows: int) -> list[Text]:
    reading: list[tuple[str, dict[str, Any]]] = [
        (one.name, each) for one in destinations for each in one.snapshots if each["state"] != SnapshotState.FAILED
    ]
    lines = [
        Text(
            f"{name}: reading {each['table']}, {each['rows']} of about {each['rows_expected']} rows{_older(each)}",
            "cyan",
        )
        for name, each in reading[: max(1, rows // SNAPSHOTS_SHARE)]
    ]
    left = len(reading) - len(lines)
    return [*lines, *([Text(f"… and snapshots are reading {left} more tables", "cyan")] if left else ())]


def _older(reading: dict[str, Any]) -> str:
    return f"; {reading['lake_is_older']}" if reading.get("lake_is_older") else ""


def _processes(report: StatusReport) -> Text:
    alive = [process for process in report.processes if process["alive"]]
    if not alive:
        return Text("no process runs", "red")
    names = ", ".join(process["name"] for process in alive)
    return Text(f"{sum(process['rss_mb'] for process in alive)} MB: {names}")
