"""Defines the subcommands of `sluice bench`. The other modules of `benchmarks` do the measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(name="bench", help="Measure Sluice and compare it with other programs.", no_args_is_help=True)
BenchJson = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]


@bench_app.command("engine")
def bench_engine(
    server: Annotated[str, typer.Option(help="A database server of `sluice setup`, such as mysql-9.")] = "mysql-8.0.31",
    tls: Annotated[bool, typer.Option(help="Connect with TLS.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--set", help="oltp, bulk, varied or wide. Default: all. Repeatable.")
    ] = None,
    json_file: BenchJson = None,
) -> None:
    """Read one binlog by a bare socket, by other libraries and by Sluice; about 20 minutes."""
    from benchmarks.engine import SETS, run  # noqa: PLC0415

    if unknown := {*(only or ())} - {*SETS}:
        raise typer.BadParameter(f"unknown sets: {', '.join(sorted(unknown))}; the sets are {', '.join(SETS)}")
    run(json_file, release=server, tls=tls, names=tuple(only or ()))


@bench_app.command("types")
def bench_types(
    only: Annotated[list[str] | None, typer.Option("--type", help="Only this type. Repeatable.")] = None,
    json_file: BenchJson = None,
) -> None:
    """Stage rows of each column type, one table per type; about 10 minutes."""
    from benchmarks.types import run  # noqa: PLC0415

    run(json_file, names=tuple(only or ()))


@bench_app.command("merge")
def bench_merge(json_file: BenchJson = None) -> None:
    """Merge staged files into ten million rows, by Sluice and by a bare MERGE; about 40 minutes."""
    from benchmarks.merge import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("growth")
def bench_growth(
    rows_max: Annotated[
        int, typer.Option(min=1000, help="Rows of the largest table. The smallest has a hundredth.")
    ] = 100_000_000,
    merges: Annotated[int, typer.Option(min=20, help="Merges into one table.")] = 500,
    json_file: BenchJson = None,
) -> None:
    """Merge a batch into larger and larger tables, after hundreds of merges, and in a cold Spark; about 30 minutes."""
    from benchmarks.growth import run  # noqa: PLC0415

    run(json_file, rows_max=rows_max, merges=merges)


@bench_app.command("scaling")
def bench_scaling(json_file: BenchJson = None) -> None:
    """Merge on a standalone Spark cluster whose one, two and four executors have cores of their own, if the machine has so many; about 10
    minutes.
    """
    from benchmarks.scaling import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("tables")
def bench_tables(
    tables: Annotated[int, typer.Option(min=10, help="Number of tables.")] = 3_000,
    json_file: BenchJson = None,
) -> None:
    """Start with thousands of tables, take their snapshots, change and alter a few and all of them; about 30 minutes."""
    from benchmarks.many_tables.tables import run  # noqa: PLC0415

    run(json_file, tables=tables)


@bench_app.command("destinations")
def bench_destinations(
    count: Annotated[list[int] | None, typer.Option(min=1, help="Number of destinations. Repeatable.")] = None,
    json_file: BenchJson = None,
) -> None:
    """Start 1, 20 and 100 destinations, let them idle, change one and all of them; about 20 minutes."""
    from benchmarks.many_tables.destinations import run  # noqa: PLC0415

    run(json_file, counts=count or (1, 20, 100))


@bench_app.command("wide")
def bench_wide(
    tables: Annotated[int, typer.Option(min=1, help="Number of tables.")] = 200,
    changes: Annotated[int, typer.Option(min=2, help="Changes of each table in one batch.")] = 5,
    whole: Annotated[bool, typer.Option(help="Also measure the whole pipeline.")] = True,
    way: Annotated[list[str] | None, typer.Option(help="spark, small or loop. Default: all. Repeatable.")] = None,
    json_file: BenchJson = None,
) -> None:
    """Merge a few changes of many tables by each method and by a bare loop, then by the whole pipeline; about 30 minutes."""
    from benchmarks.wide import WAYS, run  # noqa: PLC0415

    run(json_file, tables=tables, changes=changes, whole=whole, ways=way or WAYS)


@bench_app.command("snapshot")
def bench_snapshot(
    rows: Annotated[int, typer.Option(min=1000, help="Rows of the table.")] = 10_000_000, json_file: BenchJson = None
) -> None:
    """Copy the rows of one table to Delta, by a snapshot and by a parallel Spark JDBC read; about 30 minutes."""
    from benchmarks.snapshot import run  # noqa: PLC0415

    run(json_file, rows)


@bench_app.command("e2e")
def bench_e2e(json_file: BenchJson = None) -> None:
    """Process a backlog, then steady loads, by the whole pipeline; about 10 minutes."""
    from benchmarks.e2e import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("start")
def bench_start(
    tables: Annotated[int, typer.Option(min=1, help="Number of new tables with a snapshot.")] = 200,
    json_file: BenchJson = None,
) -> None:
    """Measure `sluice up` until waiting changes and the snapshots of new tables are visible; about 5 minutes."""
    from benchmarks.start import run  # noqa: PLC0415

    run(json_file, tables=tables)


@bench_app.command("idle")
def bench_idle(
    seconds: Annotated[float, typer.Option(min=10, help="How long nothing happens.")] = 120,
    json_file: BenchJson = None,
) -> None:
    """Measure the CPU time and memory of each process while nothing changes; about 5 minutes."""
    from benchmarks.idle import run  # noqa: PLC0415

    run(json_file, seconds=seconds)


@bench_app.command("protocol")
def bench_protocol(
    transactions: Annotated[int, typer.Option(min=100, help="Transactions of one row each.")] = 60_000,
    bulk: Annotated[int, typer.Option(min=100, help="Rows of bulk statements.")] = 300_000,
    runs: Annotated[int, typer.Option(min=1, help="Runs per server and data set.")] = 3,
    json_file: BenchJson = None,
) -> None:
    """Read one binlog with Canal's Java client from Canal 1.1.7 and from Sluice; about 10 minutes."""
    from benchmarks.canal.protocol import run  # noqa: PLC0415

    run(json_file, transactions=transactions, bulk=bulk, runs=runs)


@bench_app.command("soak")
def bench_soak(
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of the run. Each fault occurs at least once.")] = 120,
    every: Annotated[float, typer.Option(min=0, help="Minutes without a fault before each fault.")] = 3,
    calm: Annotated[
        float, typer.Option(min=0, help="Minutes without a fault at the beginning, to observe memory.")
    ] = 0,
    json_file: BenchJson = None,
) -> None:
    """Run the pipeline under traffic while source, ZooKeeper, engine and Spark fail one by one. Exit code 1 unless the tables are equal."""
    from benchmarks.soak.soak import Length, run  # noqa: PLC0415

    length = Length(seconds=minutes * 60, between_seconds=every * 60, calm_seconds=calm * 60)
    raise typer.Exit(0 if run(json_file, length) else 1)


@bench_app.command("years")
def bench_years(
    days: Annotated[int, typer.Option(min=100, help="Days that pass.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same days.")] = 1,
    answers: Annotated[int, typer.Option(min=1, help="Answers of operators that are kept.")] = 500,
    json_file: BenchJson = None,
) -> None:
    """Let years of statements, snapshots and approvals pass in one destination. Exit code 1 if its files or its memory have no limit."""
    from benchmarks.soak.years import run  # noqa: PLC0415

    raise typer.Exit(1 if run(json_file, days=days, seed=seed, answers_kept=answers) else 0)


@bench_app.command("fuzz")
def bench_fuzz(
    seconds: Annotated[int, typer.Option(min=1, help="Seconds of all runs together.")] = 600,
    seed: Annotated[int, typer.Option(help="The same seed damages the same bytes.")] = 1,
) -> None:
    """Read damaged binlogs in separate processes. Exit code 1 if one crashes, hangs, leaks memory or fails without a named error."""
    from benchmarks.fuzzing.fuzz import run  # noqa: PLC0415

    raise typer.Exit(1 if run(seconds, seed) else 0)


@bench_app.command("histories")
def bench_histories(
    seed: Annotated[int, typer.Option(help="Number of the first history.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Number of histories.")] = 10_000,
    json_file: BenchJson = None,
) -> None:
    """Simulate histories of failovers, crashes and mistakes by seed. Exit code 1 if one breaks a promise; it is shortened and shown."""
    from benchmarks.histories.judging.bench import run  # noqa: PLC0415

    raise typer.Exit(1 if run(seed, count, json_file) else 0)


@bench_app.command("compare")
def bench_compare(
    file: Annotated[Path, typer.Argument(help="The JSON of a benchmark, named as in benchmarks/results.", exists=True)],
    record: Annotated[
        Path | None, typer.Option(help="The record to compare with. Default: benchmarks/results.", exists=True)
    ] = None,
) -> None:
    """Name the figures of a benchmark that are worse than its record by more than 10 %. Exit code 1 if there are any."""
    from benchmarks.regressions import RESULTS, run  # noqa: PLC0415

    if record is None and not (RESULTS / file.name).is_file():
        raise typer.BadParameter(f"{RESULTS} has no record named {file.name}; name one with --record")
    if not run(file, record):
        raise typer.Exit(1)
