"""The subcommands of `sluice bench`; `benchmarks` defines what is measured, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(name="bench", help="Measure Sluice against its limits and its peers.", no_args_is_help=True)
BenchJson = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]


@bench_app.command("engine")
def bench_engine(json_file: BenchJson = None) -> None:
    """Read one binlog by the bare socket, by its peers and by Sluice; about a quarter of an hour."""
    from benchmarks.engine import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("types")
def bench_types(
    only: Annotated[list[str] | None, typer.Option("--type", help="Only this type; may be given again.")] = None,
    json_file: BenchJson = None,
) -> None:
    """Stage the rows of each column type, each in a table of its own; about ten minutes."""
    from benchmarks.types import run  # noqa: PLC0415

    run(json_file, names=tuple(only or ()))


@bench_app.command("merge")
def bench_merge(json_file: BenchJson = None) -> None:
    """Merge staged files into ten million rows, by Sluice and by a bare MERGE; about forty minutes."""
    from benchmarks.merge import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("growth")
def bench_growth(
    rows_max: Annotated[
        int, typer.Option(min=1000, help="Of the largest table; a hundredth of it is the smallest.")
    ] = 100_000_000,
    merges: Annotated[int, typer.Option(min=20, help="That pile up in one table.")] = 500,
    json_file: BenchJson = None,
) -> None:
    """Merge a batch into ever larger tables, into one after hundreds of merges, and first of all in a cold Spark; half an hour."""
    from benchmarks.growth import run  # noqa: PLC0415

    run(json_file, rows_max=rows_max, merges=merges)


@bench_app.command("scaling")
def bench_scaling(json_file: BenchJson = None) -> None:
    """Merge on a standalone Spark cluster with one, two and four executor cores, as far as the machine has them; about ten minutes."""
    from benchmarks.scaling import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("wide")
def bench_wide(
    tables: Annotated[int, typer.Option(min=1, help="How many tables.")] = 200,
    changes: Annotated[int, typer.Option(min=2, help="Changes of each table in one batch.")] = 5,
    whole: Annotated[bool, typer.Option(help="Through the whole pipeline too.")] = True,
    way: Annotated[list[str] | None, typer.Option(help="spark, small or loop; all of them if none is named.")] = None,
    json_file: BenchJson = None,
) -> None:
    """Merge a few changes of each of many tables, by each way and by a bare loop, then through the whole pipeline; half an hour."""
    from benchmarks.wide import WAYS, run  # noqa: PLC0415

    run(json_file, tables=tables, changes=changes, whole=whole, ways=way or WAYS)


@bench_app.command("snapshot")
def bench_snapshot(
    rows: Annotated[int, typer.Option(min=1000, help="Of the table.")] = 10_000_000, json_file: BenchJson = None
) -> None:
    """Take the rows of one table into Delta, by a snapshot and by a bare parallel Spark JDBC read; about half an hour."""
    from benchmarks.snapshot import run  # noqa: PLC0415

    run(json_file, rows)


@bench_app.command("e2e")
def bench_e2e(json_file: BenchJson = None) -> None:
    """Take up a backlog, then steady loads, through the whole pipeline; about ten minutes."""
    from benchmarks.e2e import run  # noqa: PLC0415

    run(json_file)


@bench_app.command("protocol")
def bench_protocol(
    transactions: Annotated[int, typer.Option(min=100, help="Of one row each.")] = 60_000,
    bulk: Annotated[int, typer.Option(min=100, help="Rows of bulk statements.")] = 300_000,
    runs: Annotated[int, typer.Option(min=1, help="Of each server and set.")] = 3,
    json_file: BenchJson = None,
) -> None:
    """Take one binlog by Canal's own Java client from Canal 1.1.7 and from Sluice; about ten minutes."""
    from benchmarks.canal.protocol import run  # noqa: PLC0415

    run(json_file, transactions=transactions, bulk=bulk, runs=runs)


@bench_app.command("soak")
def bench_soak(
    minutes: Annotated[float, typer.Option(min=0, help="Length; each fault comes once at least.")] = 120,
    every: Annotated[float, typer.Option(min=0, help="Minutes of calm before each fault.")] = 3,
    calm: Annotated[
        float, typer.Option(min=0, help="Minutes before all of that without a fault: what memory does.")
    ] = 0,
    json_file: BenchJson = None,
) -> None:
    """Run the pipeline under traffic while source, ZooKeeper, engine and Spark fail in turn; exit code 1 unless the tables are equal."""
    from benchmarks.soak.soak import Length, run  # noqa: PLC0415

    length = Length(seconds=minutes * 60, between_seconds=every * 60, calm_seconds=calm * 60)
    raise typer.Exit(0 if run(json_file, length) else 1)


@bench_app.command("fuzz")
def bench_fuzz(
    seconds: Annotated[int, typer.Option(min=1, help="Length of all runs together.")] = 600,
    seed: Annotated[int, typer.Option(help="The same seed damages the same bytes.")] = 1,
) -> None:
    """Read damaged binlogs in processes of their own; exit code 1 when one crashed, hung, grew or failed without a named error."""
    from benchmarks.fuzzing.fuzz import run  # noqa: PLC0415

    raise typer.Exit(1 if run(seconds, seed) else 0)


@bench_app.command("histories")
def bench_histories(
    seed: Annotated[int, typer.Option(help="The first history; each number is one.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 10_000,
    json_file: BenchJson = None,
) -> None:
    """Play histories of failovers, crashes and mistakes by seed; exit code 1 when one broke the promise, shown as short as it gets."""
    from benchmarks.histories.judging.bench import run  # noqa: PLC0415

    raise typer.Exit(1 if run(seed, count, json_file) else 0)
