"""Defines the subcommands of `sluice schema`. `console.acts.schema` and `cdc_engine.acts.stopped_table` implement them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sluice.console.commands.options import (
    AnyDestinationArgument,
    DestinationArgument,
    JsonOption,
    VerboseOption,
    config_now,
    screen,
)

schema_app = typer.Typer(name="schema", help="Show tables, and decide on pending schema changes.", no_args_is_help=True)
TableArgument = Annotated[
    str, typer.Argument(metavar="DATABASE.TABLE", help="A captured table, by its name in the source.")
]
PositionOption = Annotated[
    str,
    typer.Option(
        "--position",
        help=(
            "Position of the DDL statement or stop about which you decide, as `schema held --json` prints it. If the "
            "table now waits at another statement or stop, the command changes nothing."
        ),
    ),
]


@schema_app.command("show")
def schema_show(destination: DestinationArgument, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Show the tables of a destination: columns, key, state, and which schema changes would wait for approval.

    Of more than 100 tables, the command lists stopped tables first, and only counts those beyond 100; --verbose lists all.
    """
    from sluice.console.acts.schema import listed, render_schema, schema_json  # noqa: PLC0415

    tables = schema_json(config_now(), destination)
    if as_json:
        screen.print_json(json.dumps(tables))
        return
    some, others = (tables, "") if verbose else listed(destination, tables)
    screen.print(render_schema(some))
    if others:
        screen.print(others, markup=False)


@schema_app.command("held")
def schema_held(destination: AnyDestinationArgument = "", as_json: JsonOption = False) -> None:
    """Show the schema changes that wait for approval, and what each plan would do."""
    from sluice.console.acts.schema import pending_changes_of, pending_json, render_pending  # noqa: PLC0415

    changes = pending_changes_of(config_now(), destination)
    screen.print_json(json.dumps(pending_json(changes))) if as_json else screen.print(render_pending(changes))


@schema_app.command("approve")
def schema_approve(
    destination: DestinationArgument,
    table: TableArgument,
    plan: Annotated[str, typer.Option("--plan", help="One of the plans that `schema held` lists.")] = "apply",
    position: PositionOption = "",
) -> None:
    """Approve a pending schema change with one of its plans. The running engine then resumes the table."""
    from sluice.cdc_engine.acts.stopped_table import approve  # noqa: PLC0415
    from sluice.console.acts.schema import directory_of  # noqa: PLC0415

    record = approve(directory_of(config_now(), destination), table, plan, position=position)
    screen.print(
        f"{table}: approved `{record.statement}` as {plan}; the table continues from this statement", markup=False
    )


@schema_app.command("resume")
def schema_resume(destination: DestinationArgument, table: TableArgument, position: PositionOption = "") -> None:
    """Resume a stopped table after the cause of its stop is fixed. If the cause is still there, the table stops again.

    Refused while the table's Delta table is missing, restored, replaced or another owner's.
    """
    from sluice.cdc_engine.acts.stopped_table import resume, stop_of  # noqa: PLC0415
    from sluice.console.acts.schema import directory_of  # noqa: PLC0415
    from sluice.console.lake.lacking import refuse_unless_left_by_runs  # noqa: PLC0415

    config = config_now()
    directory = directory_of(config, destination)
    refuse_unless_left_by_runs(config, destination, table, stop_of(directory, table).state)
    stop = resume(directory, table, position=position)
    screen.print(f"{table}: continues from the position of its stop, {stop.position} ({stop.state})", markup=False)


@schema_app.command("resolve")
def schema_resolve(
    destination: DestinationArgument,
    table: TableArgument,
    create_table: Annotated[
        str, typer.Option("--create-table", metavar="FILE", help="File with the CREATE TABLE statement; - for stdin.")
    ],
) -> None:
    """Define the schema of a table that stopped in SCHEMA_UNKNOWN or SCHEMA_MISMATCH. The table continues from its stop."""
    from sluice.cdc_engine.acts.stopped_table import resolve  # noqa: PLC0415
    from sluice.console.acts.schema import directory_of, statement_of  # noqa: PLC0415

    stop = resolve(directory_of(config_now(), destination), table, statement_of(create_table))
    screen.print(f"{table}: continues from the position of its stop, {stop.position}, with this schema", markup=False)
