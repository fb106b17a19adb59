"""Defines the commands that answer questions about the lake. `sluice sql` queries the lake. `sluice equal` compares the lake with the
source. `sluice history` shows the batches that changed a table. `sluice why` shows the batches that changed a row.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sluice.console.commands.options import (
    DestinationArgument,
    JsonOption,
    SettleOption,
    config_now,
    errors,
    named,
    screen,
)


def sql(
    question: Annotated[
        str, typer.Argument(metavar="SQL", help='The query, for example "SELECT count(*) FROM shop.orders".')
    ],
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV for a program instead of a table.")] = False,
    demo_lake: Annotated[
        bool, typer.Option("--demo", help="Query the lake of `sluice demo` instead of the lake in conf/.")
    ] = False,
) -> None:
    """Query the lake with SQL. Each captured table is `database.table`. DuckDB executes the query, without Spark."""
    from sluice.console.demo.home import open_home  # noqa: PLC0415
    from sluice.console.lake.sql import render, run_query, write_csv, write_json  # noqa: PLC0415

    answer = run_query(config_now(open_home(None).conf if demo_lake else None), question)
    for sentence in answer.left_out:
        errors.print(sentence, markup=False, highlight=False, soft_wrap=True)
    if as_json or as_csv:
        (write_json if as_json else write_csv)(answer, sys.stdout)
    else:
        screen.print(render(answer))


def equal(  # noqa: PLR0917  one argument per option
    destination: DestinationArgument,
    tables: Annotated[
        str, typer.Option("--tables", metavar="DATABASE.TABLE,…", help="Tables to compare. Default: all.")
    ] = "",
    sample: Annotated[
        float,
        typer.Option(
            "--sample",
            min=0,
            max=100,
            metavar="PERCENT",
            help="Compare this percentage of each table's chunks, chosen at random.",
        ),
    ] = 0,
    full: Annotated[bool, typer.Option("--full", help="Compare every row. This is the default.")] = False,
    since_last: Annotated[
        bool,
        typer.Option(
            "--since-last", help="Compare the chunks whose rows in the lake changed since their last comparison."
        ),
    ] = False,
    settle_seconds: SettleOption = 300,
    as_json: JsonOption = False,
) -> None:
    """Compare the lake with the source, while changes continue. Exit code 1 unless every table is equal."""
    from sluice.console.lake.equal import compare, extent_of, render  # noqa: PLC0415

    extent = extent_of(sample, full=full, since_last=since_last, settle_seconds=settle_seconds)
    results = list(compare(config_now(), destination, named(tables), extent, None if as_json else _progress))
    screen.print_json(json.dumps([each.to_json() for each in results])) if as_json else screen.print(render(results))
    raise typer.Exit(0 if all(each.equal for each in results) else 1)


def _progress(sentence: str) -> None:
    """Prints a message about the progress to standard error, so that standard output contains only the result."""
    errors.print(sentence, markup=False, highlight=False, soft_wrap=True)


DestinationOption = Annotated[
    str,
    typer.Option("--destination", help="Name of the destination. Required if several destinations capture the table."),
]


def history(
    table: Annotated[
        str, typer.Argument(metavar="DATABASE.TABLE", help="A captured table, by its name in the source.")
    ],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="VALUE",
            help=(
                "Show only the batch of this Delta version, or the batch that contains this binlog position (FILE:OFFSET), "
                "GTID or time (UTC)."
            ),
        ),
    ] = "",
    destination: DestinationOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the batches that changed a table, as the Delta log records them: positions, times, numbers of changes, versions and runs."""
    from sluice.console.lake import history as lake  # noqa: PLC0415

    found = lake.history_of(lake.captured_table(config_now(), table, destination))
    chosen = lake.at(found, at) if at else found
    screen.print_json(json.dumps([each.to_json() for each in chosen])) if as_json else screen.print(lake.render(chosen))
    raise typer.Exit(0 if chosen else 1)


def why(
    table: Annotated[
        str, typer.Argument(metavar="DATABASE.TABLE", help="A captured table, by its name in the source.")
    ],
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Key of the row, such as 5. For two key columns: 7,a or id=7,name=a.")
    ],
    destination: DestinationOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show every change of a row in a Delta table, newest first: the version, the row's values, the time, the batch and the run."""
    from sluice.console.lake import history as lake  # noqa: PLC0415
    from sluice.console.lake import life  # noqa: PLC0415

    steps, gone = life.known_life(lake.captured_table(config_now(), table, destination), key)
    if gone:
        errors.print(gone, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        screen.print_json(json.dumps([each.to_json() for each in steps]))
    elif steps:
        screen.print(life.render(steps))
    elif not gone:
        sentence = f"{table} has no row with the key {key} in any version of its Delta log"
        errors.print(sentence, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if steps else 1)
