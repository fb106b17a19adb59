"""A stage for the tests of this room: outside of it production is not played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.histories import bench


@pytest.fixture(scope="package")
def stage() -> Iterator[bench.Stage]:
    with bench.stage() as here:
        yield here
