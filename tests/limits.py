"""pytest plugin that also limits the time of a test's fixtures after a failure, and that ends a process which does not react to its limit.

pytest-timeout stops its timer at the first exception of a test, so fixtures that are torn down afterwards would have no limit. It also
interrupts a test by a signal. Python delivers a signal only between two of its instructions, and native code may never return to them.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest
import pytest_timeout  # type: ignore[import-untyped]

# If a test exceeds its limit by this time, the process is ended. By then, any signal that Python can deliver has interrupted the test.
MARGIN_SECONDS = 60.0


class Limits:
    def __init__(self) -> None:
        self._settings: pytest_timeout.Settings | None = None
        self._stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)  # A test may replace its own stderr.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._settings = None
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, settings: pytest_timeout.Settings) -> None:
        """Stores the limit that pytest-timeout sets now, and sets a second, later limit at which the process ends."""
        self._settings = settings
        if settings.timeout:
            faulthandler.dump_traceback_later(settings.timeout + MARGIN_SECONDS, file=self._stderr, exit=True)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector) -> None:
        """Starts the limit again, for the fixtures that are torn down next."""
        if self._settings is not None and isinstance(node, pytest.Item):
            node.config.hook.pytest_timeout_set_timer(item=node, settings=self._settings)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Limits(), "sluice-limits")
