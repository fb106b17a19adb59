"""Tests how `sluice why` searches the versions of a table for the changes of one row. The table is imitated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.console.lake.life import LOOKS_MAX, GoneError, life
from sluice.spark_jobs.staged_batch import COMMIT_TIME, ORDER_KEY
from sluice.spark_jobs.tables.commit_record import CommittedInterval


class UpdatedInEachVersion:
    """A row that each version of the table changed."""

    def row(self, version: int) -> Mapping[str, Any]:
        return {"id": 1, "v": version, ORDER_KEY: version, COMMIT_TIME: None}


def commits(count: int) -> list[CommittedInterval]:
    """Returns the commits of versions 0 to `count` - 1, newest first."""
    return [
        CommittedInterval(
            version_before=version - 1,
            version=version,
            operation="MERGE",
            committed_at_us=0,
            first_order_key=version,
            last_order_key=version,
        )
        for version in range(count)
    ][::-1]


@pytest.mark.found
def test_a_search_that_ends_before_the_oldest_version_says_so() -> None:
    """Defect 78: `sluice why` ended its list after 500 steps without a message."""
    shown: list[int] = []
    with pytest.raises(GoneError, match=r"ended before version 9 .* `VERSION AS OF 9`"):
        shown.extend(step.values["v"] for step in life(UpdatedInEachVersion(), commits(LOOKS_MAX + 10)))
    assert shown == list(range(LOOKS_MAX + 9, 9, -1))


def test_a_search_that_reaches_the_oldest_version_shows_all() -> None:
    assert len(list(life(UpdatedInEachVersion(), commits(LOOKS_MAX)))) == LOOKS_MAX
