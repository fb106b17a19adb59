"""Waiting for a condition of another process, with a deadline; for tests that must not sleep and hope."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None], seconds_max: float = 60.0) -> T:
    """The first truthy answer of a condition; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        threading.Event().wait(0.1)
    pytest.fail(f"not within {seconds_max:.0f} s: {what}")
