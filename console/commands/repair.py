"""Defines `sluice repair` and its options; `console.lake.repair` does the work."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sluice.console.commands.options import config_now, errors, screen


def repair(  # noqa: PLR0917  one argument an option
    destination: str,
    tables: Annotated[
        str, typer.Option("--tables", metavar="DATABASE.TABLE,…", help="Tables. Default: all captured tables.")
    ] = "",
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Compare and show which rows would be read again; change nothing.")
    ] = False,
    settle_seconds: Annotated[
        float, typer.Option("--settle-seconds", help="Seconds to wait until merges reach the compared position.")
    ] = 300.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of a table.")] = False,
) -> None:
    """Read rows that differ from the source again and correct them, while the stream continues. Exit code 1 if rows still differ."""
    from sluice.console.lake import repair as act  # noqa: PLC0415
    from sluice.orchestration.run.rows.repair import Repaired  # noqa: PLC0415
    from sluice.orchestration.run.rows.request import RepairRequest  # noqa: PLC0415

    names = tuple(dict.fromkeys(name.strip() for name in tables.split(",") if name.strip()))
    config, request = config_now(), RepairRequest(destination=destination, tables=names, settle_seconds=settle_seconds)
    planned = act.plan(config, request)
    ready = [each for each in planned if not each.refused]
    if only_plan or not ready:
        done, all_right = Repaired(plan=planned), not planned
        lines = [act.rows(planned)] if planned else ["nothing differs"]
    else:
        keys = sum(sum(each.keys.values()) for each in ready)
        if not as_json:
            screen.print(act.rows(planned))
        question = f"read {keys} keys of {len(ready)} tables again from the source?"
        if not yes and not typer.confirm(question, err=as_json):
            raise typer.Exit(1)
        done = act.run(config, request, planned, _say)
        all_right, lines = done.all_right, [act.outcome(done)]
    if as_json:
        screen.print_json(json.dumps(done.to_json()))
    else:
        for line in lines:
            screen.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if all_right else 1)


def _say(sentence: str) -> None:
    errors.print(sentence, markup=False, highlight=False, soft_wrap=True)
