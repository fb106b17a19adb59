"""Implements `sluice equal`: compares the source and the lake with the package `equality`, and shows the result."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.sources import reader_of, source_of
from sluice.console.source.query import require_destination
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.orchestration.base.lake_settings import storage_options

MARKS = {
    Verdict.EQUAL: Text("yes", "green"),
    Verdict.DIFFERENT: Text("NO", "red"),
    Verdict.UNDECIDED: Text("not known", "yellow"),
    Verdict.REFUSED: Text("not compared", "yellow"),
}


def extent_of(sample: float, *, full: bool, since_last: bool, settle_seconds: float) -> Extent:
    """Returns which part of the rows the comparison covers. The arguments are the options of the command: `sample` is a percentage, or 0 if
    the option was not given. `settle_seconds` limits the wait until the lake reaches the position of the comparison. Raises
    ConfigurationError if more than one of --sample, --full and --since-last was given.
    """
    if sum((sample > 0, full, since_last)) > 1:
        raise ConfigurationError("--sample, --full and --since-last exclude each other: give only one of them")
    if sample:
        return Extent(mode="sample", percent=sample, settle_seconds=settle_seconds)
    return Extent(mode="since-last" if since_last else "full", settle_seconds=settle_seconds)


def compare(
    config: SluiceConfig,
    destination: str,
    tables: Sequence[str],
    extent: Extent,
    say: Callable[[str], None] | None = None,
) -> Iterable[TableResult]:
    """Compares tables of a destination, and yields a result per table. If `tables` is empty, compares all tables. `say` is called with a
    sentence for each table that is compared, and for each wait. Raises ConfigurationError if the destination does not exist.
    """
    settings = require_destination(config, destination)
    request = ComparedDestination(
        config,
        destination,
        source_of(settings),
        storage_options(config.storage_options),
        say=say,
        reader=reader_of(settings),
    )
    return compare_destination(request, tables, extent)


def render(results: Sequence[TableResult]) -> RenderableType:
    shown = Table("table")
    for column in ("rows", "in the lake", "chunks"):
        shown.add_column(column, justify="right")
    for column in ("equal", "up to", "checked (UTC)"):
        shown.add_column(column)
    sentences: list[RenderableType] = []
    for each in results:
        chunks = f"{each.chunks_compared} of {each.chunks}"
        when = dt.datetime.fromtimestamp(each.checked_at_us / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        shown.add_row(each.table, str(each.rows), str(each.lake_rows), chunks, MARKS[each.verdict], each.position, when)
        sentences += [Text(f"{each.table}: {sentence}", style="red") for sentence in sentences_of(each)]
    return Group(shown, *sentences)


def sentences_of(result: TableResult) -> list[str]:
    """Returns lines about the result of a comparison: why the table could not be compared, which chunks and rows differ, and which columns
    were not compared. The command prints the lines below the numbers of rows.
    """
    said = [result.reason] if result.reason else []
    said += [
        f"chunk {each.chunk}: rows differ; {each.source_rows} in the source, {each.lake_rows} in the lake"
        for each in result.chunks_different
    ]
    said += [str(each) for each in result.differences]
    if result.difference_count > len(result.differences) and result.differences:
        said.append(f"… and {result.difference_count - len(result.differences)} more rows")
    if result.left_out:
        said.append(f"not compared: {', '.join(result.left_out)}")
    return said
