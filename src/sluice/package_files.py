"""Returns the paths of the package's read-only files, in a wheel or in a checkout. Data and a user's conf/ are never among them.

Sluice writes only to the working folder: the folder that contains conf/, by default the current one.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).absolute().parent  # The path is not resolved, because in a checkout its entries are links.


def package_file(name: str) -> Path:
    """Returns the path of a file of the package. `name` is the path relative to the package `sluice`."""
    return PACKAGE / name


def conf_file(conf: Path, name: str) -> Path:
    """Returns the file of the user's conf/ if it exists, otherwise the package's default file."""
    own = conf / name
    return own if own.exists() else package_file(f"conf/{name}")


def checkout() -> Path | None:
    """Returns the root of the checkout that runs, or None for an installed package, which has no tests and no benchmarks."""
    root = PACKAGE.parents[1]
    return root if PACKAGE.parent.name == "src" and (root / "tests").is_dir() else None
