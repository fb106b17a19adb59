"""Tests tables that are published while the newest consistent snapshot is not rewritten at once: what the later rewrite may change."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.consistent_snapshot.find import consistent_snapshots_path
from sluice.orchestration.run import consistent_snapshots
from sluice.orchestration.run.consistent_snapshots import SnapshotAmendments, publish_for_batch
from sluice.spark_jobs.consistent_snapshots import newest_order_key
from sluice.spark_jobs.fence import BY_HAND
from tests.consistent_snapshot.test_consistent_snapshot import batch
from tests.scale.fix_many_tables import keep_lake_tables, make_destination, table_name

FIRST, PUBLISHED = table_name(0), table_name(1)


class Shop:
    """Two tables of a destination with real records and consistent snapshots. The Delta tables themselves are not read."""

    def __init__(self, config: SluiceConfig) -> None:
        self._config, self._records = config, keep_lake_tables(config, 2)
        self.amendments = SnapshotAmendments(config, "shop", clock=itertools.count().__next__)

    def change_conf(self, **settings: str) -> None:
        changed = self._config.destinations["shop"].model_copy(update=settings)
        self._config = self._config.model_copy(update={"destinations": {"shop": changed}})

    def merge(self, end: int, version: int, *buffered: str) -> None:
        """Merges a batch into the published table, unless its changes are buffered, and publishes a consistent snapshot."""
        self._records.keep({PUBLISHED: (f"id-{PUBLISHED}", version)})
        publish_for_batch(self._config, "shop", "run", batch(end), BY_HAND, buffered=buffered)

    def publish(self, version: int) -> None:
        """Publishes the table as a snapshot run does. Another table was published immediately before, so this table waits for the next
        rewrite.
        """
        self.amendments.add(FIRST, 1, str)
        self._records.keep({PUBLISHED: (f"id-{PUBLISHED}", version)})
        self.amendments.add(PUBLISHED, 9, str)
        assert list(self.amendments.waiting) == [PUBLISHED]

    def repair(self, version: int) -> None:
        self._records.keep({PUBLISHED: (f"id-{PUBLISHED}", version)})
        SnapshotAmendments(self._config, "shop").add(PUBLISHED, 9, str)

    @property
    def newest(self) -> tuple[int, int, bool]:
        """Returns the order key of the newest snapshot, and the table's version and whether it has stopped."""
        snapshot = read_consistent_snapshot(self._config.lake, "shop")
        table = snapshot.tables[PUBLISHED]
        return snapshot.order_key, table.version, table.stopped

    @property
    def newest_key(self) -> int | None:
        return newest_order_key(consistent_snapshots_path(self._config.lake, "shop"))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    config, _ = make_destination(tmp_path, 2)
    return Shop(config)


def test_a_published_table_that_waits_is_in_the_newest_snapshot_afterwards(shop: Shop) -> None:
    assert shop.newest_key is None
    shop.merge(10, 1)
    shop.publish(5)
    assert shop.newest == (10, 1, False)
    shop.amendments.write(str)
    assert shop.newest == (10, 5, False)
    assert not shop.amendments.waiting


@pytest.mark.parametrize("buffered_version", [5, 7], ids=["at the published version", "merged since"])
def test_a_late_write_changes_no_table_that_stopped_after_it_was_published(shop: Shop, buffered_version: int) -> None:
    """Otherwise the table would be complete for readers of the newest snapshot, although it lacks the rows of later batches."""
    shop.merge(10, 1)
    shop.publish(5)
    shop.merge(20, buffered_version)
    shop.merge(30, buffered_version, PUBLISHED)
    shop.amendments.write(str)
    assert shop.newest == (30, buffered_version, True)
    assert shop.newest_key == 30


def test_a_table_that_is_published_again_is_no_longer_stopped_in_the_newest_snapshot(shop: Shop) -> None:
    """A publication was killed after it had written the record of the table, and before it wrote the record of the snapshot. So a batch
    treated the table as buffered.
    """
    shop.merge(10, 5, PUBLISHED)
    assert shop.newest == (10, 5, True)
    shop.publish(5)
    shop.amendments.write(str)
    assert shop.newest == (10, 5, False)


def test_a_late_write_leaves_a_table_that_was_repaired_meanwhile(shop: Shop) -> None:
    shop.merge(10, 1)
    shop.publish(5)
    shop.repair(6)
    shop.amendments.write(str)
    assert shop.newest == (10, 6, False)


@pytest.mark.found
def test_a_table_that_conf_no_longer_captures_is_marked_in_the_snapshot(shop: Shop) -> None:
    """Defect 1033: the consistent snapshot named the last version of an excluded table as if it belonged to the snapshot's position."""
    shop.merge(10, 1)
    shop.change_conf(exclude=PUBLISHED)
    shop.merge(20, 1)
    assert shop.newest == (20, 1, True)
    shop.change_conf(exclude="")
    shop.merge(30, 2)
    assert shop.newest == (30, 2, False)


@pytest.mark.found
def test_the_patterns_of_captured_tables_are_compiled_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Belongs to defect 1033: each batch compiled all patterns of `include` and `exclude` again, so thousands of patterns delayed it."""
    made: list[str] = []

    class Counted(TableFilter):
        def __init__(self, include: str = "", exclude: str = "") -> None:
            made.append(exclude)
            super().__init__(include, exclude)

    monkeypatch.setattr(consistent_snapshots, "TableFilter", Counted)
    shop.change_conf(exclude="shop\\.compiled_once")
    for end in (10, 20, 30):
        shop.merge(end, end)
    assert len(made) == 1
