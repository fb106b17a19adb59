"""Finds the jars and scripts of the installed package pyspark."""

import importlib.util
from pathlib import Path

from sluice.console.toolchain.errors import SetupError


def pyspark_home() -> Path:
    """Returns the directory of the installed pyspark, which is a complete SPARK_HOME. Raises SetupError if pyspark is not installed."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SetupError(
            "pyspark is not installed in this environment; install Sluice again (in a checkout: start ./sluice)."
        )
    return Path(found.origin).parent


def pyspark_jar(name: str) -> Path:
    """Returns the jar of pyspark with this name and any version. Raises SetupError if there is no such jar."""
    found = sorted((pyspark_home() / "jars").glob(f"{name}-[0-9]*.jar"))
    if not found:
        raise SetupError(
            f"pyspark contains no {name} jar; install pyspark again (in a checkout: delete .venv and start ./sluice)."
        )
    return found[-1]
