"""Where the pyspark wheel keeps its jars and scripts; asked by the downloader and the Spark server."""

import importlib.util
from pathlib import Path

from console.toolchain.errors import SetupError


def pyspark_home() -> Path:
    """Return the folder of the installed pyspark, which is also a whole SPARK_HOME."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SetupError("pyspark is not installed in this environment; start Sluice with ./sluice, which installs it.")
    return Path(found.origin).parent


def pyspark_jar(name: str) -> Path:
    """Return the one jar that pyspark ships under this name, whatever its version."""
    found = sorted((pyspark_home() / "jars").glob(f"{name}-[0-9]*.jar"))
    if not found:
        raise SetupError(f"pyspark carries no {name} jar; delete .venv and start ./sluice again.")
    return found[-1]
