"""Defines the subcommands of `sluice conf`."""

from __future__ import annotations

import typer

from sluice.console.commands.options import errors, screen

conf_app = typer.Typer(name="conf", help="Pull conf/ from a git repository or an archive.", no_args_is_help=True)


@conf_app.command("pull")
def conf_pull() -> None:
    """Pull conf/ from the repository or archive that conf/remote.yaml names, and check it as a whole. Running engines apply the new files
    as if you had edited the files in conf/. Exit code 1 if the newest revision is not in use.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.config.remote.record import problems, sentence  # noqa: PLC0415
    from sluice.cdc_engine.errors import ConfigurationError  # noqa: PLC0415
    from sluice.cdc_engine.keeping.remote_conf.pull import PULL_SECONDS_MAX, pull  # noqa: PLC0415

    record = pull(conf_dir(), wait_seconds=PULL_SECONDS_MAX)
    if record is None:
        raise ConfigurationError(
            f"{conf_dir()}/remote.yaml does not exist: describe the repository or archive in this file"
        )
    if record.revision:
        screen.print(sentence(record), markup=False, highlight=False, soft_wrap=True)
    for each in problems(record):
        errors.print(each, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1 if problems(record) else 0)
