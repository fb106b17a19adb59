"""Prints the paths on which a change, a chunk of a snapshot and a backfill pass the files of Sluice: `python -m tests.style.paths`. With
`--write`, writes the tables in docs/architecture.md again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.style.paths.files import PAGE, cell, figures, with_tables
from tests.style.paths.steps import PATHS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.style.paths", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--write", action="store_true", help="write the tables into docs/architecture.md")
    if parser.parse_args(arguments).write:
        PAGE.write_text(with_tables(PAGE.read_text()))
    for name, figure in figures().items():
        sys.stdout.write(f"{name}: {figure}\n")
        for step in PATHS[name.removeprefix("path of ")]:
            sys.stdout.write(f"    {step.file}: {step.function}\n        {cell(step)}\n")


if __name__ == "__main__":
    main()
