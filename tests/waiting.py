"""Waits for a condition in another process, with a deadline, so that tests need not sleep for a guessed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
FIRST_LOOK_SECONDS, LOOK_SECONDS = 0.005, 0.1
# A wait pauses at least this many times as long as its last check took, but at most LONGEST_PAUSE_SECONDS. So checks that read a table or
# ask Dagster leave the processors to the processes that the test waits for.
PAUSES_PER_CHECK, LONGEST_PAUSE_SECONDS = 8, 0.5


def wait_for(what: str, condition: Callable[[], T | None], seconds_max: float = 60.0) -> T:
    """Returns the first truthy result of a condition. If there is none in time, fails the test.

    Most conditions become true within milliseconds. Therefore the first checks follow each other closely. Later there are ten per second,
    or fewer if a check takes long.
    """
    deadline, pause = time.monotonic() + seconds_max, FIRST_LOOK_SECONDS
    while (begun := time.monotonic()) < deadline:
        if answer := condition():
            return answer
        took = time.monotonic() - begun
        threading.Event().wait(max(pause, min(PAUSES_PER_CHECK * took, LONGEST_PAUSE_SECONDS)))
        pause = min(2 * pause, LOOK_SECONDS)
    pytest.fail(f"not within {seconds_max:.0f} s: {what}")


def wait_until_gone(pid: int, deadline_seconds: float) -> bool:
    """Waits until a process that is not a child of this process ends. Returns False if it still runs at the deadline."""
    end = time.monotonic() + deadline_seconds
    while time.monotonic() < end:
        if not Path(f"/proc/{pid}").exists():
            return True
        threading.Event().wait(LOOK_SECONDS / 2)
    return False
