"""Defines `sluice backfill` and its options; `console.acts.backfill` does the work."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sluice.console.commands.options import config_now, errors, screen


def backfill(  # noqa: PLR0917  one argument an option
    destination: str,
    from_word: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="ISO time with a zone, or -10m: start at the first change at or after it."
        ),
    ] = "",
    to_word: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Only changes before this time. Default: now.")
    ] = "",
    run: Annotated[
        str, typer.Option("--run", metavar="ID", help="Instead of times: the changes that this Dagster run merged.")
    ] = "",
    tables: Annotated[
        str, typer.Option("--tables", metavar="DATABASE.TABLE,…", help="Tables. Default: all captured tables.")
    ] = "",
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="DATABASE.TABLE",
            help="Write the table in --tables, as it was at --to, into this new table. The live table does not change.",
        ),
    ] = "",
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Show what would be read and changed, and what is refused; change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of a table.")] = False,
) -> None:
    """Apply the changes of an interval of the past again, while the stream continues. Exit code 1 if a table is refused."""
    from sluice.console.acts import backfill as act  # noqa: PLC0415

    if bool(from_word) == bool(run) or (run and to_word):
        raise typer.BadParameter("name --from TIME, or --run ID without --to.")
    config = config_now()
    wanted = act.asked_by_run(config, destination, run, tables) if run else act.asked(from_word, to_word, tables)
    if only_plan:
        made = act.plan(config, destination, wanted)
        shown, refused = made.to_json(), made.problems
        lines = [*act.sentences(made), act.rows(made)]
    else:
        done = act.run(config, destination, wanted, errors, into=into)
        shown, refused = done.to_json(), tuple(done.refused)
        lines = [act.outcome(done)]
    if as_json:
        screen.print_json(json.dumps(shown))
    else:
        for line in lines:
            screen.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1 if refused else 0)
