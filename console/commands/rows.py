"""Defines `sluice backfill` and `sluice repair` with their options. `console.lake.rows` implements the commands."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from sluice.console.commands.options import (
    DestinationArgument,
    JsonOption,
    SettleOption,
    TablesOption,
    YesOption,
    config_now,
    errors,
    named,
    screen,
)


def backfill(  # noqa: PLR0913, PLR0917  one argument per option
    destination: DestinationArgument,
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help=(
                "ISO time with a zone, or -10m (ten minutes ago): start at the first change that committed at this time or "
                "later."
            ),
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TIME",
            help="End of the interval: only changes that committed before this time. Default: now.",
        ),
    ] = "",
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="ID",
            help="Instead of --from and --to: the changes that the Dagster run with this ID merged.",
        ),
    ] = "",
    gtids: Annotated[
        str,
        typer.Option(
            "--gtids",
            metavar="SET",
            help="Instead of --from and --to: exactly the transactions of this GTID set (MariaDB: of this list of GTIDs).",
        ),
    ] = "",
    tables: TablesOption = "",
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="DATABASE.TABLE",
            help=(
                "Create this table with the rows that the table in --tables had at the time of --to. The table in --tables "
                "does not change."
            ),
        ),
    ] = "",
    archive: Annotated[
        str,
        typer.Option(
            "--archive",
            metavar="LOCATION",
            help="Read only the binlog files in this folder or object-store prefix, and do not connect to the source.",
        ),
    ] = "",
    schemas: Annotated[
        str,
        typer.Option(
            "--schemas",
            metavar="FILE",
            help=(
                "With --archive: file with the tables' schemas, a dump of `mysqldump --no-data` or a saved schema.jsonl. "
                "Default: the destination's schema history."
            ),
        ),
    ] = "",
    only_plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Show what the command would read and change, and which tables it refuses; change nothing."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Apply the changes of an interval of the past again, while the stream continues. Exit code 1 if a table is refused."""
    from sluice.console.lake import rows as act  # noqa: PLC0415
    from sluice.orchestration.run.rows.job import RowsConfig  # noqa: PLC0415

    if sum(map(bool, (since, run, gtids))) != 1 or (until and not since):
        raise typer.BadParameter("give --from TIME; or give --run ID or --gtids SET, without --to.")
    if gtids and into:
        raise typer.BadParameter("--into builds a table as it was at a time: give --from and --to instead of --gtids.")
    config = config_now()
    given = RowsConfig(
        destination=destination,
        tables=list(named(tables)),
        from_time=since,
        to_time=until,
        run=run,
        gtids=gtids,
        into=into,
        archive=archive,
        schemas=schemas,
    )
    request = act.backfill_request(config, given)
    if only_plan:
        made = act.backfill_plan(config, request)
        shown, refused = made.to_json(), made.problems
        lines = [*act.backfill_sentences(made), act.backfill_rows(made)]
    else:
        done = act.backfill(config, request, errors)
        shown, refused = done.to_json(), tuple(done.refused)
        lines = [act.backfill_outcome(done)]
    _show(shown if as_json else lines)
    raise typer.Exit(1 if refused else 0)


def repair(  # noqa: PLR0917  one argument per option
    destination: DestinationArgument,
    tables: TablesOption = "",
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Compare and show which rows would be read again; change nothing.")
    ] = False,
    settle_seconds: SettleOption = 300.0,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find rows of the lake that differ from the source, and replace them by the source's rows, while the stream continues. Exit code 1 if
    rows still differ.
    """
    from sluice.console.lake import rows as act  # noqa: PLC0415
    from sluice.orchestration.run.rows.repair import Repaired  # noqa: PLC0415
    from sluice.orchestration.run.rows.request import RepairRequest  # noqa: PLC0415

    config, names = config_now(), named(tables)
    request = RepairRequest(destination=destination, tables=names, settle_seconds=settle_seconds)
    planned = act.repair_plan(config, request)
    ready = [each for each in planned if not each.refused]
    if only_plan or not ready:
        done, all_right = Repaired(plan=planned), not planned
        lines = [act.repair_rows(planned)] if planned else ["nothing differs"]
    else:
        keys = sum(sum(each.keys.values()) for each in ready)
        if not as_json:
            screen.print(act.repair_rows(planned))
        question = f"read {keys} keys of {len(ready)} tables again from the source?"
        if not yes and not typer.confirm(question, err=as_json):
            raise typer.Exit(1)
        done = act.repair(config, request, planned, errors)
        all_right, lines = done.all_right, [act.repair_outcome(done)]
    _show(done.to_json() if as_json else lines)
    raise typer.Exit(0 if all_right else 1)


def _show(made: dict[str, Any] | list[Any]) -> None:
    """Prints a dict as JSON, and a list as lines."""
    if isinstance(made, dict):
        screen.print_json(json.dumps(made))
        return
    for line in made:
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
