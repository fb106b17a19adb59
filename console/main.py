"""The `sluice` command: every subcommand with its options; what it does lives in the module it calls.

Exit codes: 0 all well, 1 something is wrong or failed, 2 the command line or conf/ cannot be understood.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cdc_engine.errors import ConfigurationError, SluiceError, SourceCheckError
from console.backfill_commands import backfill
from console.bench_commands import bench_app
from console.screen import standard_output
from console.snapshot_commands import snapshot_app
from console.toolchain.errors import SetupError

app = typer.Typer(
    name="sluice",
    help="Every row change of MySQL and MariaDB, exactly once in effect, in Delta Lake tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
screen = standard_output()
errors = Console(stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of a table.")]


@app.command()
def setup() -> None:
    """Download and unpack what the demo needs: Java, the Delta jars and MySQL; compile the engine's kernels."""
    from console.toolchain.setup import DEMO_SERVERS, set_up  # noqa: PLC0415

    toolchain = set_up(DEMO_SERVERS, kernels=True)
    servers = ", ".join(toolchain.servers)
    screen.print(f"ready: Java {toolchain.java.version}, {servers}, Delta, in {toolchain.cache.root}")


@app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_tests(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what needs a server, Spark or a browser.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every check, also where paths are given.")] = False,
    coverage: Annotated[bool, typer.Option("--coverage", help="Show which lines no test runs; slower.")] = False,
) -> None:
    """Check formatting, lint and types, and run the tests; with paths these tests alone. Further arguments go to pytest."""
    from console.toolchain.quality import Choice, run_quality  # noqa: PLC0415

    choice = Choice(arguments=context.args, quick=quick, everything=everything, coverage=coverage)
    raise typer.Exit(run_quality(choice))


@app.command()
def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, keep everything alive, and end it on SIGTERM or Ctrl-C.")
    ] = False,
) -> None:
    """Start the engine host, Spark, Dagster's webserver and daemon; harmless when they run already."""
    from cdc_engine.config import conf_dir, load_config  # noqa: PLC0415
    from console.stack import signals  # noqa: PLC0415
    from console.stack.foreground import keep_up  # noqa: PLC0415
    from console.stack.stack import Stack  # noqa: PLC0415
    from console.toolchain.cache import open_cache  # noqa: PLC0415
    from console.toolchain.kernels import compile_kernels  # noqa: PLC0415

    with signals.heard():
        stack = Stack(load_config(), conf_dir(), screen.print, die_with_parent=foreground)
        compile_kernels(open_cache(), screen.print)
        if foreground:
            keep_up(stack)
            return
        stack.up()
    screen.print(f"Dagster's UI: {stack.url}   logs: {stack.logs}", highlight=False, soft_wrap=True)


@app.command()
def down() -> None:
    """Stop everything that `sluice up` started, and nothing else."""
    from cdc_engine.config import conf_dir, load_config  # noqa: PLC0415
    from console.stack.stack import Stack  # noqa: PLC0415

    left = Stack(load_config(), conf_dir(), screen.print).down()
    if left:
        raise SetupError(f"These processes outlived SIGKILL: {', '.join(map(str, left))}; see `ps -fp` for each.")
    screen.print("stopped; 0 processes are left")


@app.command()
def status(as_json: JsonOption = False) -> None:
    """Show processes, positions, lag and stopped tables; exit code 1 when something is wrong."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.status import read_status, render  # noqa: PLC0415

    report = read_status(load_config())
    screen.print_json(json.dumps(report.to_json())) if as_json else screen.print(render(report))
    raise typer.Exit(1 if report.problems else 0)


@app.command()
def check() -> None:
    """Check conf/, the sources, Spark, Java and the disk, and say everything that is wrong at once."""
    from cdc_engine.config import conf_dir  # noqa: PLC0415
    from console.check import run_checks  # noqa: PLC0415

    wrong = 0
    for finding in run_checks(conf_dir()):
        wrong += len(finding.problems)
        mark = "[red]✗[/red]" if finding.problems else "[green]✓[/green]"
        screen.print(mark, finding.what, highlight=False, soft_wrap=True)
        for sentence in (*finding.problems, *finding.warnings):
            screen.print(f"    {sentence}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def sql(
    question: Annotated[str, typer.Argument(metavar="SQL", help='For example "SELECT count(*) FROM shop.orders".')],
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV for a program instead of a table.")] = False,
    demo_lake: Annotated[
        bool, typer.Option("--demo", help="Ask the lake of `sluice demo` instead of that of conf/.")
    ] = False,
) -> None:
    """Ask the lake a question in SQL; each captured table is `database.table`. DuckDB answers, Spark need not run."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.demo.home import open_home  # noqa: PLC0415
    from console.lake.sql import ask, render, write_csv, write_json  # noqa: PLC0415

    answer = ask(load_config(open_home(None).conf if demo_lake else None), question)
    if as_json or as_csv:
        (write_json if as_json else write_csv)(answer, sys.stdout)
    else:
        screen.print(render(answer))


@app.command()
def equal(  # noqa: PLR0917  one argument an option
    destination: str,
    tables: Annotated[str, typer.Option("--tables", metavar="DATABASE.TABLE,…", help="these alone; all if empty")] = "",
    sample: Annotated[
        float,
        typer.Option("--sample", min=0, max=100, metavar="PERCENT", help="so many of each table's chunks, by chance"),
    ] = 0,
    full: Annotated[bool, typer.Option("--full", help="every row; the default")] = False,
    since_last: Annotated[
        bool,
        typer.Option("--since-last", help="the chunks whose rows in the lake changed since they were last compared"),
    ] = False,
    settle_seconds: Annotated[
        float, typer.Option("--settle-seconds", min=0, help="how long merges may take to reach what was read")
    ] = 300,
    as_json: JsonOption = False,
) -> None:
    """Is the lake what the source holds? Compares while both go on; exit code 1 unless every table was found equal."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.lake.equal import compare, extent_of, render  # noqa: PLC0415

    extent = extent_of(sample, full=full, since_last=since_last, settle_seconds=settle_seconds)
    names = [name.strip() for name in tables.split(",") if name.strip()]
    results = list(compare(load_config(), destination, names, extent))
    screen.print_json(json.dumps([each.to_json() for each in results])) if as_json else screen.print(render(results))
    raise typer.Exit(0 if all(each.equal for each in results) else 1)


DestinationOption = Annotated[str, typer.Option("--destination", help="where several capture the table")]


@app.command()
def history(
    table: Annotated[str, typer.Argument(metavar="DATABASE.TABLE")],
    at: Annotated[
        str, typer.Option("--at", metavar="WORD", help="the one of a version, FILE:OFFSET, GTID or time (UTC)")
    ] = "",
    destination: DestinationOption = "",
    as_json: JsonOption = False,
) -> None:
    """Which batches made a table what it is: positions, times, changes, versions and runs, from the table's own log."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.lake import history as lake  # noqa: PLC0415

    found = lake.history_of(lake.captured_table(load_config(), table, destination))
    chosen = lake.at(found, at) if at else found
    screen.print_json(json.dumps([each.to_json() for each in chosen])) if as_json else screen.print(lake.render(chosen))
    raise typer.Exit(0 if chosen else 1)


@app.command()
def why(
    table: Annotated[str, typer.Argument(metavar="DATABASE.TABLE")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="5, or 7,a of a key with two columns")],
    destination: DestinationOption = "",
    as_json: JsonOption = False,
) -> None:
    """A row's life: every version of the lake that changed it, with its values, time, batch and run; the newest first."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.lake import history as lake  # noqa: PLC0415
    from console.lake import life  # noqa: PLC0415

    steps, gone = life.known_life(lake.captured_table(load_config(), table, destination), key)
    if gone:
        errors.print(gone, markup=False, highlight=False, soft_wrap=True)
    screen.print_json(json.dumps([each.to_json() for each in steps])) if as_json else screen.print(life.render(steps))
    raise typer.Exit(0 if steps else 1)


@app.command()
def init(
    url: Annotated[str, typer.Argument(metavar="URL", help="mysql://user@host:3306/database, without the password.")],
    name: Annotated[str, typer.Option("--name", help="The destination's name; the database's if empty.")] = "",
    password_env: Annotated[
        str, typer.Option("--password-env", metavar="NAME", help="The variable with the password; asked for if empty.")
    ] = "",
) -> None:
    """Look at a source, say what it lacks, and write conf/ for it; the password stays in its environment variable."""
    from cdc_engine.config import conf_dir  # noqa: PLC0415
    from console.init_conf import init_conf, parse_url  # noqa: PLC0415

    wanted = parse_url(url, name)
    variable = password_env or typer.prompt("Environment variable that holds the password", default=wanted.variable)
    raise typer.Exit(0 if init_conf(wanted, variable, conf_dir(), screen.print) else 1)


position_app = typer.Typer(name="position", help="Show or set where a destination stands.", no_args_is_help=True)
app.add_typer(position_app)


@position_app.command("show")
def position_show(destination: Annotated[str, typer.Argument()] = "", as_json: JsonOption = False) -> None:
    """Show the acked position of a destination, or of all."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.position import render_positions, saved_positions  # noqa: PLC0415

    positions = saved_positions(load_config(), destination)
    screen.print_json(json.dumps(positions)) if as_json else screen.print(render_positions(positions))


@position_app.command("set")
def position_set(  # noqa: PLR0917  one argument an option
    destination: str,
    place: Annotated[str, typer.Argument(metavar="FILE:OFFSET", help="binlog file and offset")] = "",
    gtid: Annotated[str, typer.Option("--gtid", metavar="SET", help="executed GTID set")] = "",
    latest: Annotated[bool, typer.Option("--latest", help="the source's end, now")] = False,
    moment: Annotated[
        str,
        typer.Option("--time", metavar="TIME", help="the first change of then or later: ISO with its zone, or -10m"),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    as_json: JsonOption = False,
) -> None:
    """Set the position from which a stopped destination goes on; changes before it are not read again."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.position import Request, move  # noqa: PLC0415

    request = Request.parse(place, gtid, latest=latest, moment=moment)

    def asked(question: str) -> bool:
        return yes or typer.confirm(question, err=as_json)

    say = errors.print if as_json else screen.print
    position = move(load_config(), destination, request, confirm=asked, say=say)
    if as_json:
        screen.print_json(json.dumps({"destination": destination, "position": position.to_json()}))


lake_app = typer.Typer(name="lake", help="Whose the Delta tables of a destination are.", no_args_is_help=True)
app.add_typer(lake_app)


@lake_app.command("show")
def lake_show(destination: str, as_json: JsonOption = False) -> None:
    """Show the Delta tables of a destination: version, owner, epoch, path."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from cdc_engine.destination_files import read_ledger  # noqa: PLC0415
    from console.lake.tables import DestinationLake, render  # noqa: PLC0415

    config = load_config()
    tables = DestinationLake(config, destination).tables()
    if as_json:
        screen.print_json(json.dumps([dataclasses.asdict(table) for table in tables]))
    else:
        screen.print(render(tables, read_ledger(config.destination_dir(destination)).ledger_id))


@lake_app.command("accept")
def lake_accept(
    destination: str,
    table: Annotated[str, typer.Argument(metavar="DATABASE.TABLE")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Take a Delta table as it is now that runs refuse: one that is gone, restored, replaced, or another destination's."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.lake.tables import accept  # noqa: PLC0415

    accept(load_config(), destination, table, confirm=(lambda _: True) if yes else typer.confirm, say=screen.print)


schema_app = typer.Typer(
    name="schema", help="Show tables, and decide on changes of them that wait.", no_args_is_help=True
)
app.add_typer(schema_app)
TableArgument = Annotated[str, typer.Argument(metavar="DATABASE.TABLE")]


@schema_app.command("show")
def schema_show(destination: str, as_json: JsonOption = False) -> None:
    """Show the tables of a destination: columns, key, whether changes flow, and which changes would wait for approval."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.schema import render_schema, schema_json  # noqa: PLC0415

    tables = schema_json(load_config(), destination)
    screen.print_json(json.dumps(tables)) if as_json else screen.print(render_schema(tables))


@schema_app.command("held")
def schema_held(destination: Annotated[str, typer.Argument()] = "", as_json: JsonOption = False) -> None:
    """Show the changes that wait for review, with what each plan would do."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.schema import held_changes_of, held_json, render_held  # noqa: PLC0415

    changes = held_changes_of(load_config(), destination)
    screen.print_json(json.dumps(held_json(changes))) if as_json else screen.print(render_held(changes))


@schema_app.command("approve")
def schema_approve(
    destination: str,
    table: TableArgument,
    plan: Annotated[str, typer.Option("--plan", help="one of those `schema held` names")] = "apply",
) -> None:
    """Let the lake follow a held change by one of its plans; the running engine then takes the table up again by itself."""
    from cdc_engine.acts.stopped_table import approve  # noqa: PLC0415
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.schema import directory_of  # noqa: PLC0415

    record = approve(directory_of(load_config(), destination), table, plan)
    screen.print(f"{table}: approved `{record.statement}` as {plan}; it goes on from there", markup=False)


@schema_app.command("resume")
def schema_resume(destination: str, table: TableArgument) -> None:
    """Take a stopped table up again, once the cause of its stop is gone; meeting it again stops it again."""
    from cdc_engine.acts.stopped_table import resume  # noqa: PLC0415
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.schema import directory_of  # noqa: PLC0415

    stop = resume(directory_of(load_config(), destination), table)
    screen.print(f"{table}: goes on from its stop at {stop.position} ({stop.state})", markup=False)


@schema_app.command("resolve")
def schema_resolve(
    destination: str,
    table: TableArgument,
    create_table: Annotated[
        str, typer.Option("--create-table", metavar="FILE", help="with the statement; - for stdin")
    ],
) -> None:
    """Say what a table looks like that stopped in SCHEMA_UNKNOWN or SCHEMA_MISMATCH; it goes on from its stop with that schema."""
    from cdc_engine.acts.stopped_table import resolve  # noqa: PLC0415
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.schema import directory_of, statement_of  # noqa: PLC0415

    stop = resolve(directory_of(load_config(), destination), table, statement_of(create_table))
    screen.print(f"{table}: goes on from its stop at {stop.position} with this schema", markup=False)


app.add_typer(snapshot_app)
app.command()(backfill)

quarantine_app = typer.Typer(
    name="quarantine", help="Values that could not be decoded, and their way back.", no_args_is_help=True
)
app.add_typer(quarantine_app)
TableOption = Annotated[str, typer.Option("--table", metavar="DATABASE.TABLE", help="only of this table")]


@quarantine_app.command("list")
def quarantine_list(destination: str, table: TableOption = "", as_json: JsonOption = False) -> None:
    """Show the values of a destination that could not be decoded: NULL stands in their rows."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.lake.quarantine import quarantined, render, to_json  # noqa: PLC0415

    records = quarantined(load_config(), destination, table)
    screen.print_json(json.dumps([to_json(each) for each in records])) if as_json else screen.print(render(records))


@quarantine_app.command("replay")
def quarantine_replay(destination: str, table: TableOption = "", as_json: JsonOption = False) -> None:
    """Decode them again, as conf/ says by now, and put back what can be; exit code 1 while some are still refused."""
    from cdc_engine.config import load_config  # noqa: PLC0415
    from console.lake.quarantine import render_replayed, replay  # noqa: PLC0415

    results = replay(load_config(), destination, table)
    shown = json.dumps([dataclasses.asdict(each) for each in results])
    screen.print_json(shown) if as_json else screen.print(render_replayed(results))
    raise typer.Exit(1 if any(each.refused for each in results) else 0)


app.add_typer(bench_app)


@app.command()
def demo(  # noqa: PLR0917  one argument an option
    once: Annotated[bool, typer.Option("--once", help="Unattended: traffic, wait, compare with MySQL, exit.")] = False,
    seconds: Annotated[int, typer.Option(min=1, help="Length of the traffic of --once.")] = 60,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the summary of --once to this file.")] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Transactions a second.")] = 20.0,
    port_base: Annotated[int, typer.Option(min=0, max=65000, help="First of five ports; 0: the usual ones.")] = 0,
    folder: Annotated[Path | None, typer.Option("--dir", help="Where the demo keeps its data.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: delete what an earlier demo left.")] = False,
    visits: Annotated[int, typer.Option(min=1000, help="Rows that are there before the stream begins.")] = 2_000_000,
) -> None:
    """Set everything up and run a shop on MySQL whose every change flows into Delta tables."""
    from console.demo.run import DemoOptions, run_demo  # noqa: PLC0415

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


def main() -> None:
    """The entry point: errors become one red sentence and an exit code; SLUICE_DEBUG=1 shows the traceback too."""
    try:
        app(prog_name="sluice")
    except (SluiceError, SetupError) as error:
        if os.environ.get("SLUICE_DEBUG"):
            raise
        errors.print(spoken(error), style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(exit_code(error))


def spoken(error: Exception) -> str:
    """The one sentence an operator reads."""
    return str(error) or type(error).__name__


def exit_code(error: Exception) -> int:
    """2 where conf/ or the command line is at fault, 1 for the rest."""
    is_usage = isinstance(error, ConfigurationError) and not isinstance(error, SourceCheckError)
    return 2 if is_usage else 1


if __name__ == "__main__":
    main()
