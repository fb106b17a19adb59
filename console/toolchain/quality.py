"""The checks of `./sluice test`: formatting, lint, strict types, and the tests on real servers."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from console.toolchain.cache import PROJECT_ROOT
from console.toolchain.setup import ALL_SERVERS, set_up

WORKERS_MAX = 4  # each starts the servers that its tests ask for, and may hold some gigabytes
STATIC_CHECKS = {
    "formatting": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    "types": ("mypy",),
}


def run_quality(pytest_arguments: Sequence[str]) -> int:
    """Set every server up, run all checks even if one fails, and return an exit code; no tests found is a failure too."""
    screen = Console(stderr=True)
    set_up(ALL_SERVERS, kernels=True, screen=screen)
    checks = {**STATIC_CHECKS, "tests": ("pytest", *_workers(), *pytest_arguments)}
    failed = [name for name, command in checks.items() if not _passes(name, command, screen)]
    if failed:
        screen.print(f"failed: {', '.join(failed)}", style="bold red", highlight=False)
    return 1 if failed else 0


def _workers() -> tuple[str, ...]:
    """Tests mostly wait for servers, so one core runs one worker with room to spare. tests/conftest.py says what stays together."""
    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    return ("-n", str(workers), "--no-loadscope-reorder", "--max-worker-restart", "0")


def _passes(name: str, command: Sequence[str], screen: Console) -> bool:
    screen.rule(f"{name}: {' '.join(command)}", align="left")
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=PROJECT_ROOT)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait() or 1  # the check got the same Ctrl-C; let it put its servers away
    screen.print(f"{name}: {'passed' if code == 0 else f'failed ({code})'} in {time.monotonic() - began:.0f} s")
    return code == 0
