"""Defines the subcommands of `sluice instance`, which list, start, stop, restart and release engines, show their logs, and edit their
files in conf/.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from sluice.cdc_engine.errors import SluiceError
from sluice.console.commands.completion import destination_names
from sluice.console.commands.options import JsonOption, errors, screen
from sluice.console.toolchain.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.keeping.acts import Outcome

instance_app = typer.Typer(
    name="instance",
    help="The engines of destinations: list, start, stop, restart, release, log, edit.",
    no_args_is_help=True,
)


NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=destination_names, help="Name of a destination or group in conf/."),
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", min=0.0, help="Seconds to wait for the result. After that, exit with code 1; the request stays."
    ),
]


@instance_app.command("list")
def instance_list(as_json: JsonOption = False) -> None:
    """Show every engine: its state, whether an operator stopped it, which process runs it, and errors in its file in conf/."""
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.keeping.in_use import as_kept  # noqa: PLC0415
    from sluice.console.acts.instance import listed, render  # noqa: PLC0415

    found = listed(as_kept(conf_dir()))
    if as_json:
        screen.print_json(json.dumps([dataclasses.asdict(each) for each in found]))
    else:
        screen.print(render(found))


@instance_app.command("start")
def instance_start(name: NameArgument, wait: WaitOption = 40.0, as_json: JsonOption = False) -> None:
    """Start an engine that was stopped, and wait until it runs."""
    from sluice.cdc_engine.keeping import acts  # noqa: PLC0415

    _act(acts.start, name, wait, as_json=as_json)


@instance_app.command("stop")
def instance_stop(name: NameArgument, wait: WaitOption = 40.0, as_json: JsonOption = False) -> None:
    """Stop an engine. The engine stays stopped on every host, even after restarts, until `instance start`."""
    from sluice.cdc_engine.keeping import acts  # noqa: PLC0415

    _act(acts.stop, name, wait, as_json=as_json)


@instance_app.command("restart")
def instance_restart(name: NameArgument, wait: WaitOption = 40.0, as_json: JsonOption = False) -> None:
    """Restart an engine. The other engines continue."""
    from sluice.cdc_engine.keeping import acts  # noqa: PLC0415

    _act(acts.restart, name, wait, as_json=as_json)


@instance_app.command("release")
def instance_release(name: NameArgument, wait: WaitOption = 40.0, as_json: JsonOption = False) -> None:
    """Release an engine from the process that runs it, so that another host takes it over."""
    from sluice.cdc_engine.keeping import acts  # noqa: PLC0415

    _act(acts.release, name, wait, as_json=as_json)


@instance_app.command("log")
def instance_log(
    name: NameArgument,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Number of lines to show, counted from the newest line.")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show new lines until Ctrl-C.")] = False,
) -> None:
    """Show the log of a destination's engine on this host."""
    from sluice.console.acts.instance import followed, log_lines  # noqa: PLC0415

    config = _known(name)
    for line in log_lines(config, name, lines):
        _say(line)
    if follow:
        for line in followed(config, name, threading.Event()):
            _say(line)


@instance_app.command("edit")
def instance_edit(
    name: NameArgument,
    file: Annotated[
        str,
        typer.Option(
            "--file",
            metavar="FILE",
            help="File with the new text; - for stdin. Default: the command opens your editor.",
        ),
    ] = "",
) -> None:
    """Edit a destination's file in conf/. The file is saved only if all of conf/ is valid. A running engine then restarts with the new
    settings.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.console.acts.instance import changed, text_of  # noqa: PLC0415
    from sluice.console.acts.schema import statement_of  # noqa: PLC0415

    text = statement_of(file) if file else _edited(text_of(conf_dir(), name))
    try:
        is_new = text is not None and changed(conf_dir(), name, text)
    except (SluiceError, SetupError):
        if not file and text:
            kept = _kept(name, text)
            errors.print(
                f"Your text is in {kept}: correct it there, then run `sluice instance edit {name} --file {kept}`",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        raise
    if not is_new:
        screen.print(f"{name} is unchanged")
        return
    screen.print(
        f"conf/destinations/{name}.yaml is written; a running engine uses the new settings within seconds",
        highlight=False,
    )


def _edited(text: str) -> str | None:
    """Opens an editor with a text. Returns the new text, or None if it was not saved. Raises SetupError if the editor fails."""
    try:
        # As bytes, because a file of conf/ and the user's text may be in another encoding than UTF-8.
        saved = click.edit(text.encode(errors="surrogateescape"), extension=".yaml", require_save=True)
    except click.ClickException as error:
        raise SetupError(
            f"{error.format_message()}: set VISUAL to your editor, or give the new text with `--file`"
        ) from error
    return None if saved is None else bytes(saved).decode(errors="surrogateescape")


def _kept(name: str, text: str) -> str:
    """Writes a text that conf/ refuses to a new temporary file, which only this user may read. Returns the file's path."""
    descriptor, path = tempfile.mkstemp(prefix=f"sluice-{name}-", suffix=".yaml")
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode(errors="surrogateescape"))
    return path


def _act(act: Callable[[str, Path, float], Outcome], name: str, wait: float, *, as_json: bool) -> None:
    config = _known(name)
    outcome = act(name, config.destination_dir(name), wait)
    if as_json:
        screen.print_json(json.dumps(dataclasses.asdict(outcome)))
    else:
        say = screen if outcome.done else errors
        say.print(outcome.message, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if outcome.done else 1)


def _known(name: str) -> SluiceConfig:
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.keeping.in_use import as_kept  # noqa: PLC0415
    from sluice.console.source.query import engine_dir  # noqa: PLC0415

    config = as_kept(conf_dir()).config
    engine_dir(config, name)
    return config


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
