"""The subcommands of `sluice snapshot`; `console.acts.snapshot` and `acts.snapshot` do the work."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from console.commands.options import JsonOption, config_now, screen

snapshot_app = typer.Typer(
    name="snapshot", help="Rows that tables had before their changes were captured.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="database.table")]


@snapshot_app.command("start")
def start(
    destination: str,
    tables: Annotated[str, typer.Option(metavar="DATABASE.TABLE,…", help="these tables; all that are captured")] = "",
    where: Annotated[
        str, typer.Option(metavar="SQL", help="only rows that meet it; the table has no others then")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Stay and show how far it is.")] = False,
) -> None:
    """Read the rows that tables have, beside the stream; a table that stopped for good is taken anew by it."""
    from cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from console.acts import snapshot  # noqa: PLC0415

    config = config_now()
    if snapshot.is_lost(config, destination):
        snapshot.require_all(destination, tables, where)
        acts.start_where_lost(snapshot.folder(config, destination))
        screen.print(
            f"{destination}: the engine begins where the source is now, and the rows of all its tables are read",
            markup=False,
        )
        raise typer.Exit(snapshot.follow(config, destination, screen) if follow else 0)
    records = acts.start(snapshot.folder(config, destination), snapshot.chosen(config, destination, tables), where)
    for record in records:
        screen.print(f"{record.name}: the next run reads its rows; changes are buffered until then", markup=False)
    if follow:
        raise typer.Exit(snapshot.follow(config, destination, screen))
    screen.print(f"`sluice snapshot status {destination}` shows how far it is", markup=False)


@snapshot_app.command("status")
def status(
    destination: Annotated[str, typer.Argument()] = "",
    as_json: JsonOption = False,
    follow: Annotated[bool, typer.Option("--follow", help="Stay until none is under way.")] = False,
) -> None:
    """Show how far each snapshot is: rows, rate, percent, and an estimate of its end; exit code 1 where one failed."""
    from cdc_engine.states import SnapshotState  # noqa: PLC0415
    from console.acts import snapshot  # noqa: PLC0415

    config, now = config_now(), time.time()
    if follow:
        raise typer.Exit(snapshot.follow(config, destination, screen))
    shown = snapshot.snapshots(config, destination)
    if as_json:
        screen.print_json(json.dumps([each.to_json(now) for each in shown]))
    else:
        screen.print(snapshot.render(shown, now))
    raise typer.Exit(1 if any(each.record.state == SnapshotState.FAILED for each in shown) else 0)


@snapshot_app.command("pause")
def pause(destination: str, table: Name) -> None:
    """Read no further chunk of a table; its changes are held on."""
    from cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from console.acts import snapshot  # noqa: PLC0415

    record = acts.pause(snapshot.folder(config_now(), destination), table)
    screen.print(f"{table}: paused after {record.rows} rows; `sluice snapshot resume` continues it", markup=False)


@snapshot_app.command("resume")
def resume(destination: str, table: Name) -> None:
    """Go on with a paused snapshot; one that failed is read anew."""
    from cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from console.acts import snapshot  # noqa: PLC0415

    record = acts.go_on(snapshot.folder(config_now(), destination), table)
    screen.print(f"{table}: continues after {record.rows} rows", markup=False)


@snapshot_app.command("cancel")
def cancel(destination: str, table: Name) -> None:
    """End a snapshot: the table stops where it stood before, and `sluice schema resume` lets it go on from there."""
    from cdc_engine.acts import snapshot as acts  # noqa: PLC0415
    from console.acts import snapshot  # noqa: PLC0415

    acts.cancel(snapshot.folder(config_now(), destination), table)
    screen.print(f"{table}: the running engine ends its snapshot before the next batch", markup=False)
