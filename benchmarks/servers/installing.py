"""Installs what tests and benchmarks need in addition to the locked packages. Runs uv, and fills folders of the cache once."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from sluice.console.toolchain.cache import Cache, locked, open_cache
from sluice.console.toolchain.errors import SetupError

ROOT = Path(__file__).parents[2]


def uv(*arguments: str, **variables: str) -> str:
    """Runs uv with its cache, and returns its output. `variables` are additional environment variables. Raises SetupError with uv's
    message if uv fails.
    """
    cache = open_cache().root
    own = sorted((cache / "tools").glob("uv-*/bin/uv"))
    program = str(own[-1]) if own else shutil.which("uv")
    if not program:
        raise SetupError("There is no uv; start ./sluice, which gets it.")
    environment = {**os.environ, **variables}
    if environment.get("SLUICE_CACHE"):
        environment.setdefault("UV_CACHE_DIR", str(cache / "uv"))
    if environment.get("PIP_INDEX_URL"):
        environment.setdefault("UV_DEFAULT_INDEX", environment["PIP_INDEX_URL"])
    done = subprocess.run([program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"uv {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def built_wheels() -> tuple[str, ...]:
    """Returns the options for uv with which it takes the wheel of PySpark that it has already built on this machine.

    PySpark has no wheel. When uv's answer from the registry is outdated, uv downloads and builds PySpark again, which takes a minute and
    2 GB of its cache.
    """
    folders = {wheel.parent for wheel in Path(uv("cache", "dir").strip()).glob("sdists-*/*/pyspark/*/*/pyspark-*.whl")}
    return tuple(option for folder in sorted(folders) for option in ("--find-links", str(folder)))


def installed_once(cache: Cache, name: str, install: Callable[[Path], Path]) -> Path:
    """Returns the folder `name` in the cache. The first call installs the folder, completely or not at all. `install` gets an empty folder,
    and returns the folder in it that becomes `name`.
    """
    home = cache.servers / name
    with locked(cache):
        if not home.exists():
            cache.servers.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=cache.servers) as folder:
                install(Path(folder)).rename(home)
    return home
