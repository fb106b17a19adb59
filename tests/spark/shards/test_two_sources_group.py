"""Tests two destinations that write shards into one Delta table. Their runs merge at the same time or are killed. A run is refused if its
table locks or its shard's name conflict with those of the other destination.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.destination_files import StoredTableLock
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_locks import TableLocks, Writing
from sluice.spark_jobs.table_owner import Owner, behind_our_back
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.targets.shards import LOCKS_PROPERTY, Shard
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.spark.conftest import Lake
from tests.spark.shards.test_shards_group import changes, image
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Records, Segment, Truncate
from tests.waiting import wait_for

pytestmark = pytest.mark.spark

NAME = "shop.orders"
Batch = Sequence[Segment]


class Killed(BaseException):
    """Simulates the end of the process. This is a BaseException, so that code that handles errors does not catch it."""


@dataclasses.dataclass
class Side:
    """A destination with one table. The table is one shard, and the shard has the destination's name."""

    lake: Lake
    destination: str
    way: SmallSetting
    locks: str = "one place"
    records: Records = dataclasses.field(default_factory=Records)
    lock: type[StoredTableLock] = StoredTableLock
    deliveries: itertools.count[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    @property
    def owner(self) -> Owner:
        return Owner(ledger_id=f"ledger-{self.destination}", destination=self.destination, table=NAME)

    def table_locks(self) -> TableLocks:
        location = LedgerLocation(
            destination=self.destination, directory=self.lake.folder / "engine" / self.destination
        )
        return TableLocks(
            lock=lambda _: self.lock(location, "orders"), who=f"a run of {self.destination}", wait_seconds=120.0
        )

    def stage(self, *segments: Segment) -> Path:
        words = {"destination": self.destination, "ledger_id": self.owner.ledger_id}
        return self._stage({NAME: segments}, words)

    def _stage(self, tables: dict[str, Batch], words: dict[str, str]) -> Path:
        lake = dataclasses.replace(self.lake, folder=self.lake.folder / self.destination, deliveries=self.deliveries)
        return lake.stage(tables, **words)

    def merge(self, directory: Path, name: str = "") -> TableReport:
        target = self.lake.target(
            "orders", shard=Shard(column="shard", name=name or self.destination, locks=self.locks), merge=self.way
        )
        spark = dataclasses.replace(self.lake.spark, sessions_file=self.lake.folder / f"{self.destination}.lanes")
        (report,) = merge_batch(
            read_staged_batch(directory),
            {NAME: target},
            spark,
            BatchContext(records=self.records, table_locks=self.table_locks()),
        )
        return report

    def play(self, *segments: Segment) -> TableReport:
        return self.merge(self.stage(*segments))

    def writes(self, order_key: int, *rows: tuple[int, int, str]) -> Segment:
        """Returns a segment with these changes, given as (operation, id, name). All changes have one order key."""
        return changes(*(image(self.destination, operation, order_key, key, name) for operation, key, name in rows))

    def rows(self) -> dict[int, str]:
        found = [row[1:] for row in self.lake.rows("orders", "shard", "id", "name") if row[0] == self.destination]
        assert len(dict(found)) == len(found), found
        return dict(found)

    def suspects(self) -> str:
        """Returns what the ticks of this destination would report about the table now."""
        record = self.records.get(NAME)
        assert record is not None
        table = DeltaTable(
            NAME, self.lake.path("orders"), app_id_of(self.owner), {}, Shard(column="shard", name=self.destination)
        )
        table.refresh()
        return behind_our_back(self.owner, record, table.found(record, self.owner.to_text()))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkConnectServer) -> tuple[Side, Side]:
    """Provides two destinations that have both written the table: east merges with `deltalake`, and west with Spark."""
    lake = Lake(tmp_path_factory.mktemp("two"), SparkSettings(remote=spark_server.url))
    east, west = Side(lake, "east", "small"), Side(lake, "west", "spark")
    east.play(east.writes(1_000_000, (INSERT, 1, "e1")))
    west.play(west.writes(10, (INSERT, 1, "w1")))
    return east, west


def test_runs_of_two_destinations_merge_into_one_table_at_once_in_a_group(sides: tuple[Side, Side]) -> None:
    """The order keys of west are far below those of east for the same keys. They have no effect on each other, because rows of two sources
    are never compared.
    """
    east, west = sides

    def work(side: Side, first: int) -> list[str]:
        ways = list[str]()
        for number in range(4):
            key = first + 2 * number
            rows = [(INSERT, 10 + number, f"{number}"), (UPDATE_AFTER, 1, f"{side.destination} {number}")]
            emptied = [Truncate(key - 1)] if side is west and number == 2 else []
            ways.append(side.play(*emptied, side.writes(key, *rows)).way)
        return ways

    with ThreadPoolExecutor(2) as pool:
        ways = [pool.submit(work, east, 1_000_011), pool.submit(work, west, 21)]
        assert {*ways[0].result(), *ways[1].result()} == {"small", "spark"}
    assert east.rows() == {1: "east 3", 10: "0", 11: "1", 12: "2", 13: "3"}
    assert west.rows() == {1: "west 3", 12: "2", 13: "3"}
    assert [side.suspects() for side in sides] == ["", ""]
    assert east.lake.log("orders").metadata().configuration[LOCKS_PROPERTY] == "one place"


@pytest.mark.parametrize("location", ["before it is taken", "taken", "written down", "merged", "taken back"])
def test_a_run_that_is_killed_with_a_table_lock_delays_no_other_in_a_group(
    sides: tuple[Side, Side], location: str
) -> None:
    east, west = sides

    class Dying(StoredTableLock):
        """Raises Killed at `location`, as if the process ended there. The lock is then released, as the kernel does after the end of a
        process.
        """

        def try_take(self) -> bool:
            if location == "before it is taken":
                raise Killed
            return super().try_take()

        def write(self, text: str) -> None:
            if location == ("taken" if text else "merged"):
                raise Killed
            super().write(text)
            if location == ("written down" if text else "taken back"):
                raise Killed

    key = max(east.rows()) + 1
    batch = east.stage(east.writes(1_001_000 + key, (INSERT, key, location)))
    east.lock = Dying
    try:
        with pytest.raises(Killed):
            east.merge(batch)
    finally:
        east.lock = StoredTableLock
    assert (key in east.rows()) == (location in {"merged", "taken back"})
    west.way = "small"  # This is the other way than in the test before.
    west.play(west.writes(1_000 + key, (INSERT, 1_000 + key, location)))
    assert east.merge(batch).skipped == (location in {"merged", "taken back"})
    assert east.rows()[key] == west.rows()[1_000 + key] == location
    assert [side.suspects() for side in sides] == ["", ""]


def test_what_a_dead_run_left_running_in_spark_is_ended_in_a_group(sides: tuple[Side, Side]) -> None:
    east, west = sides
    ended = threading.Event()

    def run(spark: Any) -> None:
        try:
            spark.sql("SELECT reflect('java.lang.Thread', 'sleep', id + 600000) FROM range(1)").collect()
        except Exception:
            ended.set()

    with open_sessions(east.lake.spark, 1) as (session,):
        lock = east.table_locks().lock("orders")
        assert lock is not None
        assert lock.try_take()
        lock.write(Writing.of("a run of east", east.lake.spark, [session]).to_text())
        lock.release()  # This has the effect of its death.
        thread = threading.Thread(target=run, args=(session.spark,))
        thread.start()
        west.play(west.writes(5_000, (UPDATE_AFTER, 13, "after it")))
        wait_for("it has ended", ended.is_set)
        thread.join()
    assert west.rows()[13] == "after it"


def test_a_destination_with_other_table_locks_or_the_name_of_another_is_refused_in_a_group(
    sides: tuple[Side, Side],
) -> None:
    east, west = sides
    version, north = east.lake.log("orders").version(), Side(east.lake, "north", "spark")
    elsewhere = dataclasses.replace(west, locks="another place")
    taken = r"this shard of the Delta table .* belongs to the destination east .* Give this shard another `name`"
    apart = r"rows of the destination east \(shard 'east'\), whose runs use the locks at one place"
    for side, name, sentence in ((elsewhere, "", apart), (north, "east", taken)):
        batch = side.stage(side.writes(9_000, (DELETE, 13, "gone")))
        with pytest.raises(MergeError, match=sentence) as caught:
            side.merge(batch, name)
        assert [(each.state, each.for_good) for each in caught.value.errors] == [("TABLE_OWNED", True)]
    assert east.lake.log("orders").version() == version
