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
        list[str] | None,
        typer.Option(
            "--set", help="Set of changes to read: oltp, bulk, varied or wide. Default: all sets. Repeatable."
        ),
    ] = None,
    json_file: BenchJson = None,
) -> None:
    """Measure how fast a socket without any decoding, other libraries and Sluice read the same binlog; about 20 minutes."""
    from benchmarks.engine import SETS, run  # noqa: PLC0415

    if unknown := {*(only or ())} - {*SETS}:
        raise typer.BadParameter(f"unknown sets: {', '.join(sorted(unknown))}; the sets are {', '.join(SETS)}")
    run(json_file, release=server, tls=tls, names=tuple(only or ()))


@bench_app.command("types")
def bench_types(
    only: Annotated[list[str] | None, typer.Option("--type", help="Measure only this type. Repeatable.")] = None,
    json_file: BenchJson = None,
) -> None:
    """Stage rows of each column type, one table per type; about 10 minutes."""
    from benchmarks.types import run  # noqa: PLC0415

    run(json_file, names=tuple(only or ()))


@bench_app.command("merge")
def bench_merge(json_file: BenchJson = None) -> None:
    """Merge staged files into ten million rows, by Sluice and by a MERGE statement without Sluice; about 40 minutes."""
    from benchmarks.merge import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("growth")
def bench_growth(
    rows_max: Annotated[
        int, typer.Option(min=1000, help="Rows of the largest table. The smallest table has a hundredth of them.")
    ] = 100_000_000,
    merges: Annotated[int, typer.Option(min=20, help="Number of merges into one table.")] = 500,
    json_file: BenchJson = None,
) -> None:
    """Merge a batch into larger and larger tables, into a table after hundreds of merges, and directly after Spark's start; about 30
    minutes.
    """
    from benchmarks.growth import run  # noqa: PLC0415

    run(json_file, rows_max=rows_max, merges=merges)


@bench_app.command("scaling")
def bench_scaling(json_file: BenchJson = None) -> None:
    """Merge on a standalone Spark cluster with one, two and four executors, each on a core of its own, if the machine has enough cores;
    about 10 minutes.
    """
    from benchmarks.scaling import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("tables")
def bench_tables(
    tables: Annotated[int, typer.Option(min=10, help="Number of tables.")] = 3_000,
    json_file: BenchJson = None,
) -> None:
    """Start a destination with thousands of tables, take their snapshots, and change and alter first a few and then all of the tables;
    about 30 minutes.
    """
    from benchmarks.many_tables.tables import run  # noqa: PLC0415

    run(json_file, tables=tables)


@bench_app.command("destinations")
def bench_destinations(
    count: Annotated[list[int] | None, typer.Option(min=1, help="Number of destinations. Repeatable.")] = None,
    json_file: BenchJson = None,
) -> None:
    """Measure 1, 20 and 100 destinations: their start, idle time, and changes in one and in all of them; about 20 minutes."""
    from benchmarks.many_tables.destinations import run  # noqa: PLC0415

    run(json_file, counts=count or (1, 20, 100))


@bench_app.command("wide")
def bench_wide(
    tables: Annotated[int, typer.Option(min=1, help="Number of tables.")] = 200,
    changes: Annotated[int, typer.Option(min=2, help="Changes of each table in one batch.")] = 5,
    whole: Annotated[bool, typer.Option(help="Also measure the whole pipeline.")] = True,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="How to merge: spark (MERGE), small (small merges) or loop (`deltalake` without Sluice). Default: all. Repeatable."
        ),
    ] = None,
    json_file: BenchJson = None,
) -> None:
    """Merge a few changes of many tables by small merges, by MERGE statements and by a loop of `deltalake` without Sluice, then by the
    whole pipeline; about 30 minutes.
    """
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
    """Measure the whole pipeline with a backlog and with steady loads; about 10 minutes."""
    from benchmarks.e2e import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("start")
def bench_start(
    tables: Annotated[int, typer.Option(min=1, help="Number of new tables with a snapshot.")] = 200,
    json_file: BenchJson = None,
) -> None:
    """Measure the time from `sluice up` until waiting changes and the snapshots of new tables are visible; about 5 minutes."""
    from benchmarks.start import run  # noqa: PLC0415

    run(json_file, tables=tables)


@bench_app.command("idle")
def bench_idle(
    seconds: Annotated[
        float, typer.Option(min=10, help="Seconds of the measurement, in which no change occurs.")
    ] = 120,
    json_file: BenchJson = None,
) -> None:
    """Measure the CPU time and memory of each process while nothing changes; about 5 minutes."""
    from benchmarks.idle import run  # noqa: PLC0415

    run(json_file, seconds=seconds)


@bench_app.command("protocol")
def bench_protocol(
    transactions: Annotated[int, typer.Option(min=100, help="Number of transactions of one row each.")] = 60_000,
    bulk: Annotated[int, typer.Option(min=100, help="Number of rows that bulk statements change.")] = 300_000,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs per server and set of changes.")] = 3,
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
    """Run the pipeline under traffic while source, ZooKeeper, engine and Spark fail one after the other. Exit code 1 unless the lake equals
    the source at the end.
    """
    from benchmarks.soak.soak import Length, run  # noqa: PLC0415

    length = Length(seconds=minutes * 60, between_seconds=every * 60, calm_seconds=calm * 60)
    raise typer.Exit(0 if run(json_file, length) else 1)


@bench_app.command("years")
def bench_years(
    days: Annotated[int, typer.Option(min=100, help="Number of simulated days.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the random events. The same seed gives the same days.")] = 1,
    answers: Annotated[
        int, typer.Option(min=1, help="Number of operators' approvals and schemas that the destination keeps on file.")
    ] = 500,
    json_file: BenchJson = None,
) -> None:
    """Simulate years of DDL statements, snapshots and approvals in one destination. Exit code 1 if the destination's files or memory
    increase without a limit.
    """
    from benchmarks.soak.years import run  # noqa: PLC0415

    raise typer.Exit(1 if run(json_file, days=days, seed=seed, answers_kept=answers) else 0)


@bench_app.command("fuzz")
def bench_fuzz(
    seconds: Annotated[int, typer.Option(min=1, help="Total seconds of all runs.")] = 600,
    seed: Annotated[int, typer.Option(help="Seed of the damage. The same seed damages the same bytes.")] = 1,
) -> None:
    """Read damaged binlogs in separate processes. Exit code 1 if a process crashes, hangs, leaks memory or fails without a named error."""
    from benchmarks.fuzzing.fuzz import run  # noqa: PLC0415

    raise typer.Exit(1 if run(seconds, seed) else 0)


@bench_app.command("histories")
def bench_histories(
    seed: Annotated[int, typer.Option(help="Number of the first history.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Number of histories.")] = 10_000,
    json_file: BenchJson = None,
) -> None:
    """Simulate histories of failovers, crashes and mistakes, each defined by a number. Exit code 1 if a history breaks a promise. The
    command then shortens and prints this history.
    """
    from benchmarks.histories.judging.bench import run  # noqa: PLC0415

    raise typer.Exit(1 if run(seed, count, json_file) else 0)


@bench_app.command("compare")
def bench_compare(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON file of a benchmark, with the same name as its record in benchmarks/results.", exists=True
        ),
    ],
    record: Annotated[
        Path | None,
        typer.Option(
            help="The record to compare with. Default: the file of the same name in benchmarks/results.", exists=True
        ),
    ] = None,
) -> None:
    """Print the figures of a benchmark that are more than 10 % worse than in its record. Exit code 1 if there are such figures."""
    from benchmarks.regressions import RESULTS, run  # noqa: PLC0415

    if record is None and not (RESULTS / file.name).is_file():
        raise typer.BadParameter(f"{RESULTS} has no record named {file.name}; name one with --record")
    if not run(file, record):
        raise typer.Exit(1)
