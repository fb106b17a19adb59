"""Implements `./sluice test`: checks formatting, lint and strict types, and runs the tests on real servers; during development, a part of
them.

Without arguments it runs what continuous integration runs: everything. With paths it runs only these tests, and sets nothing up: a
fixture gets the servers that its test needs. `--quick` leaves out what needs a server, Spark or a browser.

The types are checked in parallel with everything else: they use one core for a minute, while a clean checkout compiles its kernels on the
other.

If a few tests fail in a whole or quick run, they are run once more, alone. A test that then passes is reported by name as unsteady, and
must be fixed; a test that fails again fails the run. Many failures are never chance, and get no second run."""

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
from sluice.console.toolchain.kernels import keep_kernels
from sluice.console.toolchain.setup import ALL_SERVERS, set_up
from sluice.console.toolchain.spark.rehearsal import provide_class_archive
from sluice.package_files import PACKAGE

PROJECT_ROOT = PACKAGE.parents[1]  # The Git checkout. Without one, `sluice test` is refused.
WORKERS_MAX = 4
WAITING = 2  # of the workers, while the others use the cores
# of workers whose process ended (tests/limits.py): the other tests go on, and the test that ended it failed
RESTARTS_MAX = 2
WORKER_BYTES = 4 << 30  # Each worker starts the servers that its tests need.
TYPES = "types"
STATIC_CHECKS = {
    "formatting": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    TYPES: ("mypy",),
}
# The tests start some thousand Python processes: without bytecode, each of them would compile the project's sources again.
NO_BYTECODE_VARIABLE = "PYTHONDONTWRITEBYTECODE"
QUICK_VARIABLE = "SLUICE_TEST_QUICK"  # Set in a quick run: tests/marks.py then lets a test that starts a server fail.
NOT_QUICK = "not servers and not spark and not browser and not package"
# This is pytest's own record for its --last-failed.
FAILED_LAST = PROJECT_ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
TESTS_FAILED = 1  # pytest's exit code if all tests ran and some failed.
# These are files and not tests, because a server that did not start fails all tests of its file.
UNSTEADY_FILES_MAX = 4
AGAIN = ("pytest", "-n", "0", "--last-failed", "--last-failed-no-failures", "none")
COVERAGE = ("--cov", "--cov-report=term:skip-covered", "--cov-report=html:.coverage-report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckChoice:
    """Which of the checks to run. `arguments`: passed to pytest, including paths."""

    arguments: Sequence[str] = ()
    quick: bool = False
    everything: bool = False
    coverage: bool = False

    @property
    def paths(self) -> list[Path]:
        """Returns the files and directories among the arguments. `::` precedes the name of a test in a file."""
        words = (argument.partition("::")[0] for argument in self.arguments if not argument.startswith("-"))
        return [PROJECT_ROOT / word for word in words if (PROJECT_ROOT / word).exists()]

    @property
    def is_whole(self) -> bool:
        return self.everything or not (self.paths or self.quick)

    @property
    def once_more(self) -> bool:
        """Whether a few failed tests are run again. A run with options for pytest, which choose tests or end it at the first failure,
        repeats none: its result is wanted immediately.
        """
        return not self.arguments


def checks_of(choice: CheckChoice) -> dict[str, tuple[str, ...]]:
    """Returns the name and command of each check, in order. A quick run leaves out the types, which take as long as all other checks
    together.
    """
    static = STATIC_CHECKS if choice.is_whole else {}
    if choice.quick and not choice.paths:
        static = {name: command for name, command in STATIC_CHECKS.items() if name != TYPES}
    marks = ("-m", NOT_QUICK) if choice.quick else ()
    coverage = COVERAGE if choice.coverage else ()
    return {**static, "tests": ("pytest", *_workers(choice), *marks, *coverage, *choice.arguments)}


def run_quality(choice: CheckChoice) -> int:
    """Sets up what the checks need, runs all of them even if one fails, and returns an exit code. A run without tests is a failure, too."""
    screen = Console(stderr=True)
    environment = {**os.environ, QUICK_VARIABLE: "1"} if choice.quick else dict(os.environ)
    environment.pop(NO_BYTECODE_VARIABLE, None)
    checks = checks_of(choice)
    with _Aside(checks.pop(TYPES, ()), environment) as types:
        if choice.is_whole:
            provide_class_archive(set_up(ALL_SERVERS, kernels=True, screen=screen), screen)
            _set_up_where_it_can_be_had(MYSQL_9, screen)
        if choice.once_more:
            FAILED_LAST.unlink(missing_ok=True)
        codes = {name: _code_of(name, command, environment, screen) for name, command in checks.items()}
        failed = [name for name, code in codes.items() if code]
        # Any other code than that of failed tests means that the run did not finish; the other tests' results are
        # unknown.
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
    """Unpacks a server that only some systems can get. On other systems its tests are skipped, and this prints why."""
    try:
        set_up([server], delta=False, screen=screen)
    except SetupError as error:
        screen.print(f"the tests of {server} will be skipped: {error}", highlight=False)


def failed_tests(record: Path = FAILED_LAST) -> list[str]:
    """Returns the names of the tests that failed in the previous run, sorted; none without a record of pytest."""
    return sorted(json.loads(record.read_text())) if record.exists() else []


def _pass_alone(names: Sequence[str], environment: Mapping[str, str], screen: Console) -> bool:
    """Returns whether the failed tests are in few files and all of them pass alone."""
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
    """Returns pytest's options for workers. Tests mostly wait for servers, so there are more workers than cores. tests/conftest.py
    decides which tests stay together.

    A worker takes seconds to start: the tests of one or two files finish sooner without.
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
    """Returns up to two more than the number of cores, as many as the memory suffices for; never fewer than the cores."""
    return min(WORKERS_MAX, max(cores, min(cores + WAITING, memory_bytes // WORKER_BYTES)))


def _code_of(name: str, command: Sequence[str], environment: Mapping[str, str], screen: Console) -> int:
    screen.rule(f"{name}: {' '.join(command)}", align="left")
    began = time.monotonic()
    psutil.cpu_percent()  # The next call returns the load since this one.
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=PROJECT_ROOT, env=environment)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait() or 1  # The check got the same Ctrl-C; it must be able to end its servers.
    # This shows whether more workers, or less work, would make it faster.
    busy = f"the processors {psutil.cpu_percent():.0f} % busy"
    screen.print(f"{name}: {'passed' if code == 0 else f'failed ({code})'} in {time.monotonic() - began:.0f} s, {busy}")
    return code


class _Aside:
    """Runs the check of types in parallel with everything else. Its output is kept until it is requested. An empty command passes."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment

    def __enter__(self) -> _Aside:
        self._said = tempfile.TemporaryFile()
        program = [sys.executable, "-m", *self._command] if self._command else ["true"]
        self._process = subprocess.Popen(
            program, cwd=PROJECT_ROOT, env=self._environment, stdout=self._said, stderr=subprocess.STDOUT
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def passes(self, screen: Console) -> bool:
        """Waits for the end of the check, prints its output and returns whether it passed."""
        if not self._command:
            return True
        screen.rule(f"{TYPES}: {' '.join(self._command)}", align="left")
        code = self._process.wait()
        self._said.seek(0)
        sys.stdout.write(self._said.read().decode(errors="replace"))
        sys.stdout.flush()
        screen.print(f"{TYPES}: {'passed' if code == 0 else f'failed ({code})'}")
        return code == 0
