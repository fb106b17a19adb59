"""`sluice maintain` and its options; `orchestration.run.maintain_run` does the work."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from console.commands.options import config_now, errors, screen


def maintain(  # noqa: PLR0917  one argument an option
    destination: str,
    tables: Annotated[
        str, typer.Option("--tables", metavar="DATABASE.TABLE,…", help="these tables; all that the lake has")
    ] = "",
    optimize: Annotated[
        bool, typer.Option("--optimize", help="Rewrite files now, also where the benefit is still small.")
    ] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Remove files that left their table.")] = False,
    retention_hours: Annotated[
        float | None,
        typer.Option("--retention-hours", min=0.0, help="how long they stay; the value in conf/ if not given"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of a table.")] = False,
) -> None:
    """Look after the Delta tables of a destination, in turn with its merges; without options: write files anew where it pays."""
    from cdc_engine import destination_files  # noqa: PLC0415
    from console.source.query import require_destination  # noqa: PLC0415
    from console.toolchain.errors import SetupError  # noqa: PLC0415
    from orchestration.base.ports import MergeFailedError, Ports  # noqa: PLC0415
    from orchestration.run.maintain_run import MaintainRequest, run_maintenance  # noqa: PLC0415
    from orchestration.run.spark_merge import spark_merge  # noqa: PLC0415

    config = config_now()
    require_destination(config, destination)
    request = MaintainRequest(
        destination=destination,
        tables=tuple(dict.fromkeys(name.strip() for name in tables.split(",") if name.strip())),
        optimize=optimize or not vacuum,
        force=optimize,
        vacuum=vacuum,
        retention_hours=retention_hours,
    )
    ports = Ports(host=_no_engine, files=lambda: destination_files, merge=spark_merge)
    try:
        made = run_maintenance(ports, config, request, _say)
    except MergeFailedError as error:
        raise SetupError(str(error)) from error
    if as_json:
        screen.print_json(json.dumps(made.to_json()))
    else:
        screen.print(_shown(made.to_json()))
    raise typer.Exit(1 if made.failed else 0)


def _shown(made: dict[str, Any]) -> Table:
    shown = Table("table", "done", "files", "bytes", "marked rows", "removed", "why")
    for each in made["tables"]:
        pairs = [f"{each['before'][name]} → {each['after'][name]}" for name in ("files", "bytes", "deleted")]
        shown.add_row(each["name"], each["act"], *pairs, str(each["removed_files"]), each["reason"])
    for name, why in sorted(made["failed"].items()):
        shown.add_row(name, "failed", "", "", "", "", why)
    return shown


def _no_engine() -> Any:
    """Raises NotImplementedError: maintenance needs no engine."""
    raise NotImplementedError


def _say(sentence: str) -> None:
    errors.print(sentence, markup=False, highlight=False, soft_wrap=True)
