"""Defines the subcommands of `sluice snapshot`. `console.acts.snapshot` and `cdc_engine.acts.snapshot` implement them."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from sluice.console.commands.options import (
    AnyDestinationArgument,
    DestinationArgument,
    JsonOption,
    TablesOption,
    VerboseOption,
    config_now,
    named,
    screen,
)

snapshot_app = typer.Typer(
    name="snapshot", help="Read the existing rows of tables into the lake.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="The source table, as database.table.")]


@snapshot_app.command("start")
def start(
    destination: DestinationArgument,
    tables: TablesOption = "",
    where: Annotated[
        str,
        typer.Option(
            metavar="SQL", help="Read only rows that match this condition. The lake table then has only these rows."
        ),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for the end of the snapshots and show the progress.")
    ] = False,
) -> None:
    """Read all rows of tables from the source and publish them in the lake, while the stream continues. A stopped table continues
    afterwards.
    """
    from sluice.cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from sluice.console.acts import snapshot  # noqa: PLC0415
    from sluice.console.acts.schema import directory_of  # noqa: PLC0415

    config = config_now()
    if snapshot.is_lost(config, destination):
        snapshot.require_all(destination, named(tables), where)
        acts.start_where_lost(directory_of(config, destination))
        screen.print(
            f"{destination}: the engine begins at the current position of the source, and snapshots read all tables",
            markup=False,
        )
        raise typer.Exit(snapshot.follow(config, destination, screen) if follow else 0)
    directory = directory_of(config, destination)
    records = acts.start(directory, acts.chosen(directory, named(tables)), where)
    for record in records:
        screen.print(
            f"{record.name}: the next run reads the table's rows; changes of the table are buffered until the rows are "
            "published",
            markup=False,
        )
    if follow:
        raise typer.Exit(snapshot.follow(config, destination, screen))
    screen.print(f"`sluice snapshot status {destination}` shows the progress", markup=False)


@snapshot_app.command("status")
def status(
    destination: AnyDestinationArgument = "",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    follow: Annotated[bool, typer.Option("--follow", help="Wait until no snapshot is in progress.")] = False,
) -> None:
    """Show the progress of each snapshot: rows, rate, percent, and estimated end. Exit code 1 if a snapshot failed.

    Of more than 100 snapshots, the command lists failed and open snapshots first, and only counts those beyond 100; --verbose lists all.
    """
    from sluice.cdc_engine.states import SnapshotState  # noqa: PLC0415
    from sluice.console.acts import snapshot  # noqa: PLC0415

    config, now = config_now(), time.time()
    if follow:
        raise typer.Exit(snapshot.follow(config, destination, screen))
    shown = snapshot.snapshots(config, destination)
    if as_json:
        screen.print_json(json.dumps([each.to_json(now) for each in shown]))
    else:
        some, others = (shown, "") if verbose else snapshot.listed(shown)
        screen.print(snapshot.render(some, now))
        if others:
            screen.print(others, markup=False)
    raise typer.Exit(1 if any(each.record.state == SnapshotState.FAILED for each in shown) else 0)


@snapshot_app.command("pause")
def pause(destination: DestinationArgument, table: Name) -> None:
    """Pause a snapshot: read no more chunks. Changes of the table stay buffered."""
    from sluice.cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from sluice.console.acts.schema import directory_of  # noqa: PLC0415

    record = acts.pause(directory_of(config_now(), destination), table)
    screen.print(
        f"{table}: paused after {record.rows} rows; `sluice snapshot resume` continues the snapshot", markup=False
    )


@snapshot_app.command("resume")
def resume(destination: DestinationArgument, table: Name) -> None:
    """Continue a paused snapshot, or start a failed snapshot again."""
    from sluice.cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from sluice.console.acts.schema import directory_of  # noqa: PLC0415

    record = acts.go_on(directory_of(config_now(), destination), table)
    screen.print(f"{table}: the snapshot continues after {record.rows} rows", markup=False)


@snapshot_app.command("cancel")
def cancel(destination: DestinationArgument, table: Name) -> None:
    """Cancel a snapshot. The table stops at the position that it had before the snapshot; `sluice schema resume` continues the table from
    that position.
    """
    from sluice.cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from sluice.console.acts.schema import directory_of  # noqa: PLC0415

    acts.cancel(directory_of(config_now(), destination), table)
    screen.print(f"{table}: the engine ends the snapshot of the table before it hands out the next batch", markup=False)
