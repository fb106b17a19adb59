"""`python -m spark_jobs.merge_batch`: merges one staged batch without Dagster, for inspection by hand and for tests of Spark itself."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from spark_jobs.errors import SparkJobError
from spark_jobs.report import TableTarget
from spark_jobs.run_batch import PARALLEL_TABLES, merge_batch
from spark_jobs.session import SparkSettings
from spark_jobs.staged_batch import read_staged_batch


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one JSON line per table. Returns 1, with the reason on standard error, if the batch could not be merged."""
    given = _parser().parse_args(arguments)
    spark = SparkSettings(
        remote=given.remote, master=given.master, options=dict(given.option), sessions_file=given.sessions_file
    )
    try:
        batch = read_staged_batch(given.batch)
        place = functools.partial(_target, given)
        tables = {table.name: place(table.name) for table in batch.tables}
        for report in merge_batch(given.batch, tables, spark, parallelism=given.parallelism, target_of=place):
            sys.stdout.write(json.dumps(dataclasses.asdict(report)) + "\n")
    except SparkJobError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _target(given: argparse.Namespace, name: str) -> TableTarget:
    database, _, table = name.partition(".")
    return TableTarget(
        path=f"{given.lake}/{database}/{table}",
        deletes=given.deletes,
        deletion_vectors=not given.no_deletion_vectors,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.merge_batch", description="Merge one staged batch into Delta tables."
    )
    parser.add_argument("--batch", type=Path, required=True, help="the staged directory")
    parser.add_argument("--lake", required=True, help="directory or URL of the Delta tables: <lake>/<database>/<table>")
    parser.add_argument("--remote", default=SparkSettings().remote, help="Spark Connect server (default %(default)s)")
    parser.add_argument("--master", default="", help="make a session in this process instead, such as local[2]")
    parser.add_argument(
        "--option", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="a Spark setting"
    )
    parser.add_argument("--deletes", choices=("hard", "soft"), default="hard")
    parser.add_argument("--no-deletion-vectors", action="store_true", help="tables are made copy-on-write")
    parser.add_argument(
        "--parallelism", type=int, default=PARALLEL_TABLES, help="tables merged at a time (default %(default)s)"
    )
    parser.add_argument("--lanes-file", type=Path, help="where the ids of the Spark sessions are kept while they merge")
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
