"""Defines the consoles and options that several subcommands of `sluice` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sluice.console.commands.screen import AS_IT_IS, standard_output

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig

screen = standard_output()
errors = Console(stderr=True, **AS_IT_IS)
DestinationArgument = Annotated[str, typer.Argument(help="A destination: the name of its file in conf/destinations.")]
AnyDestinationArgument = Annotated[str, typer.Argument(help="Name of a destination. Default: all destinations.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of a table.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TablesOption = Annotated[
    str, typer.Option("--tables", metavar="DATABASE.TABLE,…", help="Only these tables. Default: all captured tables.")
]
SettleOption = Annotated[
    float,
    typer.Option(
        "--settle-seconds",
        min=0,
        help=(
            "Seconds to wait until the lake has reached the position of the comparison. After that, differences that may be "
            "changes not merged yet are reported as undecided."
        ),
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="List names where the output otherwise has only numbers.")
]


def named(tables: str) -> tuple[str, ...]:
    """Returns the names in a comma-separated option, without repetitions."""
    return tuple(dict.fromkeys(name.strip() for name in tables.split(",") if name.strip()))


def config_now(directory: Path | None = None) -> SluiceConfig:
    """Returns the configuration that the engines of this host use. For an invalid file of conf/, uses the file's last valid content and
    prints a warning to stderr. Raises ConfigurationError if no valid content is known.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.keeping.in_use import as_kept  # noqa: PLC0415

    in_use = as_kept((directory or conf_dir()).resolve())
    for file, why in in_use.refused.items():
        warning = f"{file} in conf/ is not used, and the last valid content of this file stays in use: {why}"
        errors.print(warning, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return in_use.config
