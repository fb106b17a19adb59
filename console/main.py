"""Defines the command `sluice`: the subcommands of `console.commands`, and those for the whole installation.

Exit codes: 0 success, 1 a problem or a failure, 2 an error in the command line or in conf/, 130 after Ctrl-C.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sluice import __version__
from sluice.cdc_engine.errors import ConfigurationError, SluiceError, SourceCheckError
from sluice.console.commands.catch_up import catch_up
from sluice.console.commands.conf import conf_app
from sluice.console.commands.consumer import consumer_app
from sluice.console.commands.instance import instance_app
from sluice.console.commands.lake import lake_app, quarantine_app
from sluice.console.commands.maintain import maintain
from sluice.console.commands.options import JsonOption, VerboseOption, config_now, errors, screen
from sluice.console.commands.position import position_app
from sluice.console.commands.questions import equal, history, sql, why
from sluice.console.commands.rows import backfill, repair
from sluice.console.commands.schema import schema_app
from sluice.console.commands.screen import print_all_characters
from sluice.console.commands.snapshot import snapshot_app
from sluice.console.commands.source import source_app
from sluice.console.toolchain.errors import SetupError
from sluice.package_files import checkout

app = typer.Typer(
    name="sluice",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


NEEDS_CHECKOUT = "Tests and benchmarks are not in the package: clone the repository and use its ./sluice."


def _print_version(requested: bool) -> None:
    if requested:
        screen.print(f"sluice {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def sluice(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Copies every row change of MySQL and MariaDB into Delta tables, and applies each change exactly once."""


@app.command()
def setup(
    extras: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Also download the libraries for a lake in this kind of object store: s3, azure, google. Repeatable.",
        ),
    ] = None,
    without_demo: Annotated[
        bool, typer.Option("--without-demo", help="Do not download MySQL, which only the demo needs.")
    ] = False,
) -> None:
    """Download and unpack Java, the Delta jars and MySQL. Compile the engine's kernels, and archive Spark's classes, so that both start
    faster.
    """
    from sluice.console.toolchain.artifacts import EXTRAS  # noqa: PLC0415
    from sluice.console.toolchain.setup import DEMO_SERVERS, set_up  # noqa: PLC0415
    from sluice.console.toolchain.spark.rehearsal import provide_class_archive  # noqa: PLC0415

    if unknown := sorted({*(extras or ())} - {*EXTRAS}):
        raise typer.BadParameter(f"{unknown[0]} is none of: {', '.join(EXTRAS)}", param_hint="--with")
    toolchain = set_up([] if without_demo else DEMO_SERVERS, extras=extras or (), kernels=True)
    provide_class_archive(toolchain, screen)
    ready = ", ".join([*toolchain.servers, "Delta", *(extras or ())])
    screen.print(f"ready: Java {toolchain.java.version}, {ready}, in {toolchain.cache.root}")


@app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_tests(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out tests that need a server, Spark or a browser.")
    ] = False,
    not_quick: Annotated[bool, typer.Option("--not-quick", help="Run only what --quick leaves out.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Run all checks, including those that are skipped if paths are given.")
    ] = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Show which lines no test executes. The tests then take longer.")
    ] = False,
) -> None:
    """Check formatting, lint and types, and run the tests. With paths: run only the tests there. Other arguments are passed to pytest."""
    if not checkout():
        raise SetupError(NEEDS_CHECKOUT)
    from sluice.console.quality import CheckChoice, run_quality  # noqa: PLC0415

    if quick and not_quick:
        raise typer.BadParameter("give either --quick or --not-quick", param_hint="--not-quick")
    choice = CheckChoice(
        arguments=context.args, quick=quick, not_quick=not_quick, everything=everything, coverage=coverage
    )
    raise typer.Exit(run_quality(choice))


@app.command()
def up(
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground",
            help="Stay in the foreground, restart processes that die, and stop all of them on SIGTERM or Ctrl-C.",
        ),
    ] = False,
    without_dagster: Annotated[
        bool,
        typer.Option(
            "--without-dagster", help="Start only the engines and Spark, for a Dagster installation of your own."
        ),
    ] = False,
    while_wanted: Annotated[bool, typer.Option("--while-wanted", hidden=True)] = False,
) -> None:
    """Start the engines, Spark, and Dagster's webserver and daemon. Processes that run already continue."""
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.file_lock import is_locked  # noqa: PLC0415
    from sluice.cdc_engine.keeping.remote_conf.pull import pull_at_start  # noqa: PLC0415
    from sluice.console.acts.catch_up import LOCK_FILE  # noqa: PLC0415
    from sluice.console.stack import signals  # noqa: PLC0415
    from sluice.console.stack.foreground import keep_up, keep_up_process_of_engines  # noqa: PLC0415
    from sluice.console.stack.stack import Stack, StackOptions  # noqa: PLC0415
    from sluice.console.toolchain.cache import locked, open_cache  # noqa: PLC0415
    from sluice.console.toolchain.kernels import compile_kernels  # noqa: PLC0415

    with signals.heard():
        pull_at_start(conf_dir())
        config = config_now()
        if is_locked(config.data_dir / LOCK_FILE):
            raise SetupError(
                "`sluice catch-up` runs, and will stop the processes that it started; wait until `sluice catch-up` has "
                "ended, then run `sluice up`."
            )
        options = StackOptions(die_with_parent=foreground, dagster=not without_dagster)
        stack = Stack(config, conf_dir(), screen.print, options)
        # A tick of the engine sensor in the user's own Dagster starts this command with the hidden option --while-wanted. The process then
        # ends when no more ticks arrive.
        if while_wanted:
            keep_up_process_of_engines(stack, config.data_dir)
            return
        stack.require_startable()
        with locked(cache := open_cache(), screen.print):
            compile_kernels(cache, screen.print)
        if foreground:
            keep_up(stack)
            return
        stack.up()
    screen.print(f"{stack.shown_at}   logs: {stack.logs}", highlight=False, soft_wrap=True)


@app.command()
def engine() -> None:
    """Run the engines in this process until SIGTERM or Ctrl-C. Needs `engine: {kind: remote}` in conf/. Not needed on a host where `sluice
    up` starts the engines.
    """
    from sluice.orchestration.rpc.process import keep_engines, until_signal  # noqa: PLC0415

    keep_engines(until_signal())


@app.command()
def spark(
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address for the clients; the server has no authentication. Default: 127.0.0.1 and `ports.spark_connect`.",
        ),
    ] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory of the Java process, as 4g or 800m.")] = "4g",
) -> None:
    """Run the Spark Connect server in this process until SIGTERM or Ctrl-C. Name its address in `spark.remote` in conf/. Not needed for a
    local server, which `sluice up` starts.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.console.stack.spark_server import Listening, run_spark  # noqa: PLC0415

    config = config_now()
    address = listen or f"127.0.0.1:{config.ports.spark_connect}"
    run_spark(config, conf_dir(), Listening.at(address, memory))


@app.command()
def down() -> None:
    """Stop the processes that `sluice up` started, and no others."""
    from sluice.cdc_engine.config import SluiceConfig, conf_dir  # noqa: PLC0415
    from sluice.console.stack.processes import data_dirs_of_running  # noqa: PLC0415
    from sluice.console.stack.stack import Stack  # noqa: PLC0415

    # Takes data_dir from the running processes, because conf/ may have become invalid, or may name another data_dir now.
    found = [SluiceConfig(data_dir=each, lake=str(each / "lake")) for each in data_dirs_of_running(conf_dir())] or [
        config_now()
    ]
    left = [pid for each in found for pid in Stack(each, conf_dir(), screen.print).down()]
    if left:
        raise SetupError(
            f"These processes still run after SIGKILL: {', '.join(map(str, left))}; examine each process with `ps -fp PID`."
        )
    screen.print("stopped; 0 processes are left")


@app.command()
def status(as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Show processes, lag and stopped tables, problems first. On a terminal, the output is shortened to fit the screen; --verbose and a
    pipe show everything, including positions. Exit code 1 if something is wrong.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.config.conf_files import remote_record  # noqa: PLC0415
    from sluice.cdc_engine.keeping.in_use import as_kept  # noqa: PLC0415
    from sluice.console.status.conf import with_conf  # noqa: PLC0415
    from sluice.console.status.report import read_status, render  # noqa: PLC0415
    from sluice.console.status.screenful import screenful  # noqa: PLC0415

    in_use = as_kept(conf_dir())
    report = with_conf(read_status(in_use.config), in_use.refused, remote_record(conf_dir()))
    if as_json:
        screen.print_json(json.dumps(report.to_json()))
    elif screen.is_terminal and not verbose:
        for line in screenful(report, screen.width, screen.height):
            screen.print(line)
    else:
        screen.print(render(report, verbose=verbose))
    raise typer.Exit(1 if report.problems else 0)


@app.command()
def check(verbose: VerboseOption = False) -> None:
    """Check conf/, the sources, Spark, Java and the disk, and report all problems at once."""
    raise typer.Exit(1 if _check(verbose=verbose) else 0)


def _check(*, verbose: bool) -> int:
    """Prints the findings of `sluice check`, and returns the number of problems."""
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.console.check import problems_first, run_checks  # noqa: PLC0415

    wrong = 0
    for finding in problems_first(run_checks(conf_dir())):
        wrong += len(finding.problems)
        mark = Text("✓", "green") if not finding.warnings else Text("!", "yellow")
        mark = Text("✗", "red") if finding.problems else mark
        what, *sentences = finding.lines(verbose=verbose)
        screen.print(mark, what, highlight=False, soft_wrap=True)
        for sentence in sentences:
            screen.print(f"    {sentence}", markup=False, highlight=False, soft_wrap=True)
    return wrong


@app.command()
def doctor(
    as_json: JsonOption = False,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="FILE", help="Write the report into this .tar.gz as text and as JSON."),
    ] = None,
) -> None:
    """Collect what a report of a defect needs, without secrets: versions, conf/, state, errors in logs, disk and ports."""
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.console.doctor.report import as_text, collect, write_archive  # noqa: PLC0415

    record = collect(conf_dir())
    if archive is not None:
        write_archive(record, archive)
        screen.print(f"wrote {archive}: read this report before you send it", highlight=False, soft_wrap=True)
        return
    text = json.dumps(record, indent=1) if as_json else as_text(record)
    screen.print(text, markup=False, highlight=False, soft_wrap=True)


@app.command()
def init(  # noqa: PLR0917  one argument per option
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="URL of the source, without the password: mysql://user@host:3306/database."),
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the destination. Default: the database's name.")] = "",
    password_env: Annotated[
        str,
        typer.Option(
            "--password-env",
            metavar="NAME",
            help=(
                "Environment variable with the password. Without this option and --password-file, the command "
                "asks for the name of the variable."
            ),
        ),
    ] = "",
    password_file: Annotated[
        str,
        typer.Option(
            "--password-file", metavar="FILE", help="File with the password. Sluice reads the file at each connect."
        ),
    ] = "",
    ssh: Annotated[
        str,
        typer.Option(
            "--ssh",
            metavar="USER@HOST",
            help="Bastion through which Sluice reaches the source: user@host or user@host:port.",
        ),
    ] = "",
    ssh_key: Annotated[
        str,
        typer.Option(
            "--ssh-key", metavar="FILE", help="Private key for the bastion. Default: ssh's agent and default keys."
        ),
    ] = "",
    ssh_known_hosts: Annotated[
        str,
        typer.Option(
            "--ssh-known-hosts", metavar="FILE", help="File with the bastion's host key. Default: ssh's own files."
        ),
    ] = "",
) -> None:
    """Check whether a source meets Sluice's requirements, print what an administrator must still do at the source, and write conf/. If
    nothing is left to do, run `check` too. If something is left to do, exit with code 1. conf/ never contains the password. Relative paths
    of files start in the folder that contains conf/.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.console.init_conf import SourceLogin, init_conf, parse_url, prompt_variable  # noqa: PLC0415

    wanted = parse_url(url, name)
    if not password_env and not password_file:
        password_env = prompt_variable(wanted)
    login = SourceLogin(
        variable=password_env, file=password_file, bastion=ssh, key_file=ssh_key, known_hosts_file=ssh_known_hosts
    )
    if not init_conf(wanted, login, conf_dir(), screen.print):
        raise typer.Exit(1)
    wrong = _check(verbose=False)
    screen.print(
        f"next: {'correct the problems above, then run `sluice check`' if wrong else '`sluice up`'}", highlight=False
    )


@app.command("import-canal")
def import_canal(
    folder: Annotated[Path, typer.Argument(help="Canal's conf folder, which contains canal.properties.")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", help="The conf/ folder to write. Default: SLUICE_CONF, or conf/ in the working directory."
        ),
    ] = None,
) -> None:
    """Convert Canal's configuration and cursors to conf/, and report what is not converted. Overwrites no file."""
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.console.canal_import.convert import import_canal as convert  # noqa: PLC0415

    for sentence in convert(folder, to or conf_dir()).sentences():
        screen.print(sentence, markup=False, highlight=False, soft_wrap=True)


for command in (catch_up, sql, equal, history, why, backfill, repair, maintain):
    app.command()(command)
for group in (
    position_app, lake_app, schema_app, snapshot_app, consumer_app, source_app, instance_app, quarantine_app, conf_app,
):  # fmt: skip
    app.add_typer(group)
if checkout():
    app.add_typer(import_module("benchmarks.commands.bench").bench_app)
else:

    @app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def bench() -> None:
        """Measure Sluice and compare it with other programs. Needs a checkout."""
        raise SetupError(NEEDS_CHECKOUT)


@app.command()
def demo(  # noqa: PLR0917  one argument per option
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help=(
                "Run without interaction: change rows for some time, wait until the changes are merged, compare the lake with "
                "MySQL, and exit."
            ),
        ),
    ] = False,
    seconds: Annotated[int, typer.Option(min=1, help="With --once: seconds for which the demo changes rows.")] = 60,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="With --once: write the summary to this file, as JSON.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Transactions per second that the demo writes.")] = 20.0,
    port_base: Annotated[
        int,
        typer.Option(
            min=0, max=65000, help="First of the four consecutive ports that the demo uses. 0: the default ports."
        ),
    ] = 0,
    folder: Annotated[Path | None, typer.Option("--dir", help="Directory of the demo's data.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the data of an earlier demo first.")] = False,
    visits: Annotated[
        int, typer.Option(min=1000, help="Number of rows in shop.visits before the stream begins.")
    ] = 2_000_000,
) -> None:
    """Set up and run a demo: a shop on MySQL whose changes flow into Delta tables."""
    from sluice.console.demo.run import DemoOptions, run_demo  # noqa: PLC0415

    options = DemoOptions(
        once=once,
        seconds=seconds,
        json_file=json_file,
        rate=rate,
        port_base=port_base,
        folder=folder,
        fresh=fresh,
        visits=visits,
    )
    raise typer.Exit(run_demo(options, screen))


FULL = {errno.ENOSPC, errno.EDQUOT}
INTERRUPTED = 130  # The exit code after Ctrl-C: 128 + SIGINT, as in shells.


COMPLETE_VARIABLE = "_SLUICE_COMPLETE"  # The environment variable that a shell sets when it requests completions.


def _command() -> Any:
    """Returns the command `sluice` as a click command. When a shell requests completions, the command also completes names of destinations
    and tables.
    """
    command = typer.main.get_command(app)
    if os.environ.get(COMPLETE_VARIABLE):
        from sluice.console.commands.completion import complete_names  # noqa: PLC0415

        complete_names(command)
    return command


def main() -> None:
    """Runs the command line. Prints an error as one red message, and exits with code 1 or 2, or with 130 after Ctrl-C. With SLUICE_DEBUG=1,
    shows the traceback of an error instead of the message.
    """
    from sluice.console.stack.signals import duckdb_interrupts, ending_cleanly  # noqa: PLC0415

    print_all_characters()
    try:
        with ending_cleanly(), duckdb_interrupts():
            _command()(prog_name="sluice")
    except KeyboardInterrupt:
        errors.print("interrupted", style="red")
        sys.exit(INTERRUPTED)
    except (SluiceError, SetupError, OSError) as error:
        if os.environ.get("SLUICE_DEBUG"):
            raise
        errors.print(spoken(error), style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(exit_code(error))


def spoken(error: Exception) -> str:
    """Returns the text of an error, or the name of the error's type if the text is empty. For an OSError with a path, the text also says
    what to do.
    """
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    if not error.filename:
        full = "free space on the disk to which the output of the command goes, or on the disk of data_dir"
        return f"{error.strerror}; {full}" if error.errno in FULL else str(error) or type(error).__name__
    advice = (
        "run `sluice` as the user that started Sluice, permit this user to read and write the path, or correct the path"
    )
    if error.errno in FULL:
        advice = "free space on its disk"
    return f"{error.filename}: {error.strerror}; {advice}"


def exit_code(error: Exception) -> int:
    """Returns 2 for errors in conf/ or in the command line, except SourceCheckError, and 1 for all other errors."""
    is_usage = isinstance(error, ConfigurationError) and not isinstance(error, SourceCheckError)
    return 2 if is_usage else 1


if __name__ == "__main__":
    main()
