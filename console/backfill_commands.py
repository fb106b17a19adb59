"""`sluice backfill` and its options; what it does: `console.backfill`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cdc_engine.errors import ConfigurationError
from console.screen import standard_output

screen = standard_output()


def backfill(  # noqa: PLR0917  one argument an option
    destination: str,
    from_word: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="the first change of then or later: ISO with its zone, or -10m"),
    ],
    to_word: Annotated[str, typer.Option("--to", metavar="TIME", help="changes before then; up to now if empty")] = "",
    tables: Annotated[
        str, typer.Option("--tables", metavar="DATABASE.TABLE,…", help="these tables; all that are captured")
    ] = "",
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Show what it would read and change, and what is refused.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of a table.")] = False,
) -> None:
    """Plan to take the changes of a stretch of the past once more; exit code 1 where a table is refused."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console import backfill as act  # noqa: PLC0415

    if not only_plan:
        raise ConfigurationError("`sluice backfill` plans only: add --plan; `sluice snapshot start` takes rows anew")
    made = act.plan(load_config(), destination, act.asked(from_word, to_word, tables))
    if as_json:
        screen.print_json(json.dumps(made.to_json()))
    else:
        for sentence in act.sentences(made):
            screen.print(sentence, markup=False, highlight=False, soft_wrap=True)
        screen.print(act.rows(made))
    raise typer.Exit(1 if made.problems else 0)
