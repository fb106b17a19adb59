"""Installs the simulation for the tests of this package. Without it, production code would use its real dependencies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.histories.judging import bench


@pytest.fixture(scope="package")
def stage() -> Iterator[bench.Stage]:
    with bench.stage() as here:
        yield here
