"""Tests the loss of Spark before, during or after work outside the stream. When the work is repeated, the result is right.

Each attempt follows the one that was interrupted. The tests of each package kill runs. tests/acceptance kills source and engine.
"""

from __future__ import annotations

import contextlib
import itertools
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.failpoints import (
    AFTER_CHUNK,
    AFTER_MAINTENANCE,
    AFTER_PUBLISH,
    AFTER_ROWS,
    BEFORE_MAINTENANCE,
    BEFORE_PUBLISH,
    BEFORE_ROWS,
    BETWEEN_MAINTAINED,
    BETWEEN_ROWS,
)
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.maintain_run import MaintainRequest, run_maintenance
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.orchestration.run.spark_publish import spark_publish
from tests.parser.proxy import Proxy
from tests.spark.rows.test_repair_on_spark_equality import Broken
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

NUMBERS = itertools.count(200)


class Behind(Broken):
    """A pipeline whose Spark is behind a connection that can be interrupted."""

    def __init__(self, root: Path, server: DatabaseServer, spark: SparkConnectServer) -> None:
        super().__init__(root, server, spark)
        port = urllib.parse.urlsplit(spark.url).port
        assert port is not None
        self.port, self.line = port, Proxy(port)
        sluice = self.captured.conf / "sluice.yaml"
        sluice.write_text(sluice.read_text().replace(f":{port}", f":{self.line.port}"))
        self.engine = Engine(self.config, "shop")
        self.engine.start()

    def spark_dies(self) -> None:
        self.line.connect_to(free_port())
        self.line.disconnect()

    def spark_is_back(self) -> None:
        self.line.connect_to(self.port)

    def changes_and_is_equal(self) -> None:
        """Requires that the stream continues, and that the lake equals the source."""
        self.captured.insert([next(NUMBERS)])
        self.merge(self.engine)
        with self.captured.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT n, filler FROM {self.name} WHERE n < 1000")
            assert self.rows() == dict(cursor.fetchall())
        assert not self.engine.status().stopped_tables

    def maintain(self) -> None:
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        done = run_maintenance(
            ports, self.config, MaintainRequest(destination="shop", force=True, vacuum=True), print, run="by hand"
        )
        if done.failed:
            raise MergeFailedError(str(done.failed))

    def resnapshot(self) -> None:
        """Does what `sluice snapshot start` does, with all its runs. Repeats it if a snapshot was requested already."""
        records = SnapshotRecords(self.captured.directory)
        if not any(each.has_work for each in records.all()):
            snapshot.start(self.captured.directory, [self.name])

        def publish(record: Any, table: Any) -> int:
            failpoints.reach(BEFORE_PUBLISH)
            label = spark_publish(self.config, "shop", record, table, "run", refusal=str).label
            failpoints.reach(AFTER_PUBLISH)
            return label

        outside = SnapshotCallbacks(
            run_lock=contextlib.nullcontext,
            publish=publish,
            say=print,
            progress=lambda _: failpoints.reach(AFTER_CHUNK),
        )

        def is_published() -> bool:
            self.merge_next(self.engine)
            run_all(snapshot_dependencies(self.config, "shop", outside), 0.0)
            return not any(each.has_work for each in records.all())

        wait_for("its rows are published", is_published, 120)


@pytest.fixture
def shop(mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer) -> Iterator[Behind]:
    made = Behind(tmp_path, mysql80, spark_server)
    made.captured.insert(range(8))
    made.merge(made.engine)
    yield made
    made.engine.stop()
    made.line.__exit__()


def broken_off(shop: Behind, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *points: str) -> None:
    """Does the work once for each point, with Spark unreachable from that point on, and then once without interruption. Requires that lake
    and source are then equal.
    """
    for point in points:
        reached = list[str]()

        def reach(name: str, point: str = point, reached: list[str] = reached) -> None:
            if name == point and not reached:
                reached.append(name)
                shop.spark_dies()

        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            with contextlib.suppress(SluiceError, MergeFailedError):
                act()
        assert reached, f"{point}: it never came there"
        shop.spark_is_back()
    act()
    shop.changes_and_is_equal()


def test_a_backfill_whose_spark_dies_is_right_when_it_is_done_again_backfill(
    shop: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (50, 51):
        shop.insert(number, number)
    shop.merge(shop.engine)
    shop.by_another_hand(f"DELETE FROM delta.`{shop.path}` WHERE n IN (50, 51)")
    broken_off(shop, monkeypatch, lambda: shop.backfill(0), BEFORE_ROWS, BETWEEN_ROWS, AFTER_ROWS)


def test_a_repair_whose_spark_dies_is_right_when_it_is_done_again_equality(
    shop: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in (BEFORE_ROWS, BETWEEN_ROWS, AFTER_ROWS):
        shop.by_another_hand(f"UPDATE delta.`{shop.path}` SET filler = 'wrong' WHERE n IN (2, 6)")
        broken_off(shop, monkeypatch, shop.repair, point)


def test_maintenance_whose_spark_dies_leaves_all_right(shop: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_off(shop, monkeypatch, shop.maintain, BEFORE_MAINTENANCE, BETWEEN_MAINTAINED, AFTER_MAINTENANCE)
    snapshot = read_consistent_snapshot(shop.config.lake, "shop")
    assert snapshot.tables[shop.name].version >= 0


def test_a_snapshot_whose_spark_dies_continues_snapshot(shop: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.by_another_hand(f"DELETE FROM delta.`{shop.path}` WHERE n = 3")
    for point in (BEFORE_PUBLISH, AFTER_PUBLISH):
        broken_off(shop, monkeypatch, shop.resnapshot, point)
