"""Runs the uv that installed this checkout, for tests and benchmarks that need packages of other versions."""

import os
import shutil
import subprocess
from pathlib import Path

from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.errors import SetupError

ROOT = Path(__file__).parents[2]


def uv(*arguments: str, **variables: str) -> str:
    """Runs uv with its cache and returns its output. `variables`: additional environment variables. Raises SetupError with uv's error
    message.
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
