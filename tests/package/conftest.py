"""Builds the wheel once and installs it into an empty environment."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers.installing import built_wheels, uv

# Variables of the checkout, or of whoever runs the tests. An installed Sluice has none of them.
FOREIGN_VARIABLES = (
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "SLUICE_CONF",
    "SLUICE_CONF_IN_USE",
    "DAGSTER_HOME",
    "SLUICE_TEST_QUICK",
)
KERNELS = """
from sluice.console.toolchain.cache import locked, open_cache
from sluice.console.toolchain.kernels import compile_kernels
with locked(cache := open_cache()):
    compile_kernels(cache, print)
"""


@dataclasses.dataclass(frozen=True)
class Installed:
    """A wheel in an environment of its own."""

    wheel: Path
    environment: Path

    def command(self, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs the installed `sluice` in a folder."""
        return self._run([str(self.environment / "bin" / "sluice"), *arguments], folder, variables)

    def python(self, folder: Path, program: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.environment / "bin" / "python"), "-c", program], folder, {})

    @staticmethod
    def _run(command: list[str], folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
        return subprocess.run(
            command, cwd=folder, env={**clean, **variables}, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Installs the wheel without extras, with the versions in uv.lock, which this machine already has. The environment is removed right
    after the tests, because it has 13 000 files.

    Its kernels are copied from the cache, as `sluice setup` does, because compiling them would take more than a minute.
    """
    folder = tmp_path_factory.mktemp("package")
    uv("build", "-q", "--out-dir", str(folder / "dist"))
    (wheel,) = (folder / "dist").glob("*.whl")
    constraints = folder / "constraints.txt"
    constraints.write_text(uv("export", "-q", "--frozen", "--no-emit-project", "--no-hashes", "--all-extras"))
    environment = folder / "environment"
    uv("venv", "-q", "--python", sys.executable, str(environment))
    python = str(environment / "bin" / "python")
    uv("pip", "install", "-q", *built_wheels(), "--python", python, "--constraint", str(constraints), str(wheel))
    made = Installed(wheel, environment)
    provided = made.python(folder, KERNELS)
    assert provided.returncode == 0, provided.stderr
    yield made
    shutil.rmtree(environment)
