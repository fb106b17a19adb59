"""`./sluice test`: formatting, lint, strict types, and the tests on real servers; a part of it while somebody works on something.

Without arguments it is what continuous integration runs: everything. With paths it runs these tests alone, and sets nothing up: a fixture
gets the servers that its test needs. `--quick` leaves out what needs a server, Spark or a browser.
"""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from console.toolchain.cache import PROJECT_ROOT
from console.toolchain.setup import ALL_SERVERS, set_up

WORKERS_MAX = 4  # each starts the servers that its tests ask for, and may hold some gigabytes
STATIC_CHECKS = {
    "formatting": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    "types": ("mypy",),
}
QUICK_VARIABLE = "SLUICE_TEST_QUICK"  # tests/conftest.py: a test that starts a server all the same fails
NOT_QUICK = "not servers and not spark and not browser"
COVERAGE = ("--cov", "--cov-report=term:skip-covered", "--cov-report=html:.coverage-report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What of the checks is to run. `arguments`: for pytest, paths among them."""

    arguments: Sequence[str] = ()
    quick: bool = False
    everything: bool = False
    coverage: bool = False

    @property
    def paths(self) -> list[Path]:
        """The files and folders among the arguments; a test of a file is named after `::`."""
        words = (argument.partition("::")[0] for argument in self.arguments if not argument.startswith("-"))
        return [PROJECT_ROOT / word for word in words if (PROJECT_ROOT / word).exists()]

    @property
    def is_whole(self) -> bool:
        return self.everything or not (self.paths or self.quick)


def checks_of(choice: Choice) -> dict[str, tuple[str, ...]]:
    """Name → command of each check, in their order. The types are left out of a quick run: they take as long as all the rest of it."""
    static = STATIC_CHECKS if choice.is_whole else {}
    if choice.quick and not choice.paths:
        static = {name: command for name, command in STATIC_CHECKS.items() if name != "types"}
    marks = ("-m", NOT_QUICK) if choice.quick else ()
    coverage = COVERAGE if choice.coverage else ()
    return {**static, "tests": ("pytest", *_workers(choice), *marks, *coverage, *choice.arguments)}


def run_quality(choice: Choice) -> int:
    """Sets up what the checks need, runs all of them even if one fails, and returns an exit code; no tests found is a failure too."""
    screen = Console(stderr=True)
    if choice.is_whole:
        set_up(ALL_SERVERS, kernels=True, screen=screen)
    environment = {**os.environ, QUICK_VARIABLE: "1"} if choice.quick else dict(os.environ)
    failed = [name for name, command in checks_of(choice).items() if not _passes(name, command, environment, screen)]
    if failed:
        screen.print(f"failed: {', '.join(failed)}", style="bold red", highlight=False)
    return 1 if failed else 0


def _workers(choice: Choice) -> tuple[str, ...]:
    """Tests mostly wait for servers, so one core runs one worker with room to spare. tests/conftest.py says what stays together.

    A worker takes seconds to start: the tests of a file or two are told sooner without.
    """
    if not choice.everything and choice.paths and all(path.is_file() for path in choice.paths):
        return ("-n", "0")
    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    return ("-n", str(workers), "--no-loadscope-reorder", "--max-worker-restart", "0")


def _passes(name: str, command: Sequence[str], environment: Mapping[str, str], screen: Console) -> bool:
    screen.rule(f"{name}: {' '.join(command)}", align="left")
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=PROJECT_ROOT, env=environment)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait() or 1  # the check got the same Ctrl-C; let it put its servers away
    screen.print(f"{name}: {'passed' if code == 0 else f'failed ({code})'} in {time.monotonic() - began:.0f} s")
    return code == 0
