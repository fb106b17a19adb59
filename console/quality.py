"""Implements `./sluice test`: checks formatting, lint and types, and runs the tests on real servers.

Without arguments, the command runs all checks and tests, as continuous integration does. With paths and without `--all`, the command runs
only the tests in these paths, and sets up no servers first: fixtures start the servers that a test needs. `--quick` leaves out the type
check and the tests that need a server, Spark, a browser or the wheel. `--not-quick` runs only what `--quick` leaves out. A quick run
followed by a not-quick run executes everything once, and finds most failures early.

The type check runs in parallel with the tests, and uses one core for a minute. On a clean checkout, the kernels are compiled during this
time, which uses another core.

If only a few tests fail in a run without arguments for pytest, the failed tests are run again without other tests. A test that then passes
is reported as unsteady, and a developer must fix it. A test that fails again fails the run. If many tests fail, the failures have a common
cause, and no test is run again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from rich.console import Console

from sluice.console.toolchain.artifacts import MYSQL_9
from sluice.console.toolchain.cache import locked, open_cache
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.kernels import compile_kernels, keep_kernels
from sluice.console.toolchain.setup import ALL_SERVERS, set_up
from sluice.console.toolchain.spark.rehearsal import provide_class_archive
from sluice.package_files import PACKAGE

PROJECT_ROOT = PACKAGE.parents[1]  # The directory of the Git checkout. `sluice test` runs only in a checkout.
WORKERS_MAX = 4
# pytest gets this many workers more than there are cores, because a worker can use a core while other workers wait for servers. With a
# value of 2, tests with Spark would exceed their time limits.
WAITING = 1
# pytest replaces at most this many workers whose processes ended (tests/limits.py). The test that ended a worker's process fails, and a new
# worker runs the worker's other tests.
RESTARTS_MAX = 2
# More workers than cores are started only if there are this many bytes of memory for each worker. A worker needs this memory for itself and
# for the servers that its tests start.
WORKER_BYTES = 4 << 30
TYPES = "types"
STATIC_CHECKS = {
    "formatting": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    TYPES: ("mypy",),
}
# This variable makes Python write no bytecode files. The variable is removed from the environment of the checks: the tests start some
# thousand Python processes, and without bytecode files, each of them would compile the project's sources again.
NO_BYTECODE_VARIABLE = "PYTHONDONTWRITEBYTECODE"
# A quick run sets this variable. tests/marks.py then fails each test that starts a server.
QUICK_VARIABLE = "SLUICE_TEST_QUICK"
SLOW_MARKS = ("servers", "spark", "browser", "package")
QUICK_TESTS = " and ".join(f"not {mark}" for mark in SLOW_MARKS)
OTHER_TESTS = " or ".join(SLOW_MARKS)
# The file in which pytest records failed tests for its option --last-failed.
FAILED_LAST = PROJECT_ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
TESTS_FAILED = 1  # pytest's exit code if all tests ran and some failed.
# Failed tests are run again only if they are in at most this many files. Counts files instead of tests, because a server that does not
# start fails all tests of one file.
UNSTEADY_FILES_MAX = 4
AGAIN = ("pytest", "-n", "0", "--last-failed", "--last-failed-no-failures", "none")
COVERAGE = ("--cov", "--cov-report=term:skip-covered", "--cov-report=html:.coverage-report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckChoice:
    """The options of `./sluice test`. `arguments` are passed to pytest and may contain paths. `quick` leaves out the type check and the
    tests that need a server, Spark, a browser or the wheel, and `not_quick` runs only what `quick` leaves out. `everything` runs the static
    checks even if there are paths. `coverage` measures which lines the tests execute.
    """

    arguments: Sequence[str] = ()
    quick: bool = False
    not_quick: bool = False
    everything: bool = False
    coverage: bool = False

    @property
    def paths(self) -> list[Path]:
        """The files and directories among the arguments. In an argument, `::` separates a file from the name of a test."""
        paths = (argument.partition("::")[0] for argument in self.arguments if not argument.startswith("-"))
        return [PROJECT_ROOT / path for path in paths if (PROJECT_ROOT / path).exists()]

    @property
    def is_whole(self) -> bool:
        return self.everything or not (self.paths or self.quick)

    @property
    def once_more(self) -> bool:
        """Whether failed tests are run again if they are few. False if there are arguments for pytest, because a developer who chose the
        tests needs the result at once.
        """
        return not self.arguments


def checks_of(choice: CheckChoice) -> dict[str, tuple[str, ...]]:
    """Returns name → command of each check, in the order in which the checks run. If the arguments contain paths, only the tests run,
    unless `choice.everything` is set. A quick run leaves out the type check, because it takes as long as all other checks together. A
    not-quick run has no static check except the type check.
    """
    static = STATIC_CHECKS if choice.is_whole or (choice.quick and not choice.paths) else {}
    if choice.quick or choice.not_quick:
        static = {name: command for name, command in static.items() if (name == TYPES) is choice.not_quick}
    marks = ("-m", OTHER_TESTS if choice.not_quick else QUICK_TESTS) if choice.quick or choice.not_quick else ()
    coverage = COVERAGE if choice.coverage else ()
    return {**static, "tests": ("pytest", *_workers(choice), *marks, *coverage, *choice.arguments)}


def run_quality(choice: CheckChoice) -> int:
    """Sets up what the checks need, and runs all checks, even if one fails. Returns the exit code: 0 if all checks passed. A run in which
    no test ran has failed.
    """
    screen = Console(stderr=True)
    environment = {**os.environ, QUICK_VARIABLE: "1"} if choice.quick else dict(os.environ)
    environment.pop(NO_BYTECODE_VARIABLE, None)
    checks = checks_of(choice)
    with _Aside(checks.pop(TYPES, ()), environment) as types:
        if choice.is_whole:
            provide_class_archive(set_up(ALL_SERVERS, kernels=True, screen=screen), screen)
            _set_up_where_it_can_be_had(MYSQL_9, screen)
        # Compiles the kernels before the tests, because otherwise all workers would compile the same kernels at the same time.
        elif not choice.paths:
            with locked(cache := open_cache()):
                compile_kernels(cache, screen.print)
        if choice.once_more:
            FAILED_LAST.unlink(missing_ok=True)
        codes = {name: _code_of(name, command, environment, screen) for name, command in checks.items()}
        failed = [name for name, code in codes.items() if code]
        # If pytest ended with another exit code than TESTS_FAILED, it did not run all tests, so the failed tests are not run again.
        whole = failed == ["tests"] and codes["tests"] == TESTS_FAILED
        if whole and choice.once_more and _pass_alone(failed_tests(), environment, screen):
            failed = []
        failed += [] if types.passes(screen) else [TYPES]
    if choice.is_whole:
        with locked(cache := open_cache()):
            keep_kernels(cache)
    if failed:
        screen.print(f"failed: {', '.join(failed)}", style="bold red", highlight=False)
    return 1 if failed else 0


def _set_up_where_it_can_be_had(server: str, screen: Console) -> None:
    """Sets up a database server that is not available on every system. If the server is not available, prints that its tests are
    skipped.
    """
    try:
        set_up([server], delta=False, screen=screen)
    except SetupError as error:
        screen.print(f"the tests of {server} will be skipped: {error}", highlight=False)


def failed_tests(record: Path = FAILED_LAST) -> list[str]:
    """Returns the sorted names of the tests that failed in the previous run. The list is empty if pytest has recorded no failure."""
    return sorted(json.loads(record.read_text())) if record.exists() else []


def _pass_alone(names: Sequence[str], environment: Mapping[str, str], screen: Console) -> bool:
    """If the failed tests are in few files, runs them again without other tests, and returns whether all of them pass. Otherwise runs
    nothing, and returns False.
    """
    files = {name.partition("::")[0] for name in names}
    if not 0 < len(files) <= UNSTEADY_FILES_MAX or _code_of("once more, alone", AGAIN, environment, screen):
        return False
    for name in names:
        screen.print(
            f"unsteady: {name} failed together with other tests and passed alone; fix it",
            style="bold yellow",
            highlight=False,
        )
    return True


def _workers(choice: CheckChoice) -> tuple[str, ...]:
    """Returns pytest's options for its workers. If the memory permits, there are more workers than cores, because tests mostly wait for
    servers. tests/conftest.py decides which tests share a worker.

    A worker takes seconds to start, so no worker is started if all paths are files, except with `everything`.
    """
    if not choice.everything and choice.paths and all(path.is_file() for path in choice.paths):
        return ("-n", "0")
    return (
        "-n",
        str(workers_of(os.cpu_count() or 1, psutil.virtual_memory().total)),
        "--no-loadscope-reorder",
        "--max-worker-restart",
        str(RESTARTS_MAX),
    )


def workers_of(cores: int, memory_bytes: int) -> int:
    """Returns the number of workers: WAITING more than `cores`, but fewer if there is too little memory. The result is at least `cores`
    and at most WORKERS_MAX.
    """
    return min(WORKERS_MAX, max(cores, min(cores + WAITING, memory_bytes // WORKER_BYTES)))


def _code_of(name: str, command: Sequence[str], environment: Mapping[str, str], screen: Console) -> int:
    screen.rule(f"{name}: {' '.join(command)}", align="left")
    began = time.monotonic()
    psutil.cpu_percent()  # Begins a measurement: the next call returns the load since this call.
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=PROJECT_ROOT, env=environment)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # Waits, because the check has received Ctrl-C too, and needs time to end its servers.
        code = process.wait() or 1
    # Prints the load of the processors, which shows how to shorten the run. If the load is low, more workers shorten the run. If the load
    # is high, only tests that do less work shorten it.
    busy = f"processor load {psutil.cpu_percent():.0f} %"
    screen.print(f"{name}: {'passed' if code == 0 else f'failed ({code})'} in {time.monotonic() - began:.0f} s, {busy}")
    return code


class _Aside:
    """Runs the type check in the background, and keeps its output until `passes` prints it. With an empty command, nothing is checked."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment

    def __enter__(self) -> _Aside:
        self._said = tempfile.TemporaryFile()
        program = [sys.executable, "-m", *self._command] if self._command else ["true"]
        # All checkouts of this machine share mypy's cache, as they share compiled kernels. In a new clone, mypy then checks only the files
        # that differ.
        environment = {"MYPY_CACHE_DIR": str(open_cache().root / "types"), **self._environment}
        self._process = subprocess.Popen(
            program, cwd=PROJECT_ROOT, env=environment, stdout=self._said, stderr=subprocess.STDOUT
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def passes(self, screen: Console) -> bool:
        """Waits until the type check ends, prints its output, and returns whether it passed. Returns True at once for an empty command."""
        if not self._command:
            return True
        screen.rule(f"{TYPES}: {' '.join(self._command)}", align="left")
        code = self._process.wait()
        self._said.seek(0)
        sys.stdout.write(self._said.read().decode(errors="replace"))
        sys.stdout.flush()
        screen.print(f"{TYPES}: {'passed' if code == 0 else f'failed ({code})'}")
        return code == 0
