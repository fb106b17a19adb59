"""Owns where the files of the package are: read-only, in a wheel or in a checkout. Never data, and never a user's conf/.

What Sluice writes goes into the working folder: the folder of conf/, by default the current one.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).absolute().parent  # unresolved: in a checkout its entries are links


def package_file(name: str) -> Path:
    """Returns a file of the package, by its path relative to `sluice`."""
    return PACKAGE / name


def conf_file(conf: Path, name: str) -> Path:
    """Returns a file of the user's conf/ if it exists, otherwise the one that the package has for all."""
    own = conf / name
    return own if own.exists() else package_file(f"conf/{name}")


def checkout() -> Path | None:
    """Returns the root of the checkout that runs; None for an installed package, which has no tests and no benchmarks."""
    root = PACKAGE.parents[1]
    return root if PACKAGE.parent.name == "src" and (root / "tests").is_dir() else None
