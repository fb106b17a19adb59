"""Spark, the source or the engine goes away before, amid or after what is done beside the stream; done again, all is right.

Each go is the next try of the one that was broken off. Runs that are killed themselves: in the rooms of what is done, and tests/acceptance.
"""

from __future__ import annotations

import contextlib
import itertools
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_engine import destination_files
from cdc_engine.acts import snapshot
from cdc_engine.errors import SluiceError
from cdc_engine.instance.engine import Engine
from cdc_engine.instance.tables.table_snapshots import Outside, snapshot_hands
from cdc_engine.snapshot.records import SnapshotRecords
from cdc_engine.snapshot.work import run_all
from console.toolchain.database.server import DatabaseServer
from console.toolchain.ports import free_port
from console.toolchain.spark.server import SparkConnectServer
from lake_cut import read_cut
from orchestration import failpoints
from orchestration.failpoints import (
    AFTER_BACKFILL,
    AFTER_CHUNK,
    AFTER_MAINTENANCE,
    AFTER_PUBLISH,
    AFTER_REPAIR,
    BEFORE_BACKFILL,
    BEFORE_MAINTENANCE,
    BEFORE_PUBLISH,
    BEFORE_REPAIR,
    BETWEEN_BACKFILLED,
    BETWEEN_MAINTAINED,
    BETWEEN_REPAIRED,
)
from orchestration.ports import MergeFailedError, Ports
from orchestration.run.maintain_run import MaintainWish, run_maintenance
from orchestration.run.spark_merge import spark_merge
from orchestration.run.spark_publish import spark_publish
from tests.parser.proxy import Proxy
from tests.spark.repair.test_repair_on_spark_equality import Broken
from tests.waiting import wait_for

SPARK, MYSQL, ENGINE = "spark", "mysql", "engine"
NUMBERS = itertools.count(200)


class Outsides(Broken):
    """A pipeline whose Spark and source are behind lines that can be cut, and whose engine can be ended."""

    def __init__(self, root: Path, server: DatabaseServer, spark: SparkConnectServer) -> None:
        super().__init__(root, server, spark)
        port = urllib.parse.urlsplit(spark.url).port
        assert port is not None
        self.lines = {SPARK: (Proxy(port), port), MYSQL: (Proxy(server.port), server.port)}
        sluice = self.captured.conf / "sluice.yaml"
        sluice.write_text(sluice.read_text().replace(f":{port}", f":{self.lines[SPARK][0].port}"))
        self.captured.describe(source=f"{{user: root, host: 127.0.0.1, port: {self.lines[MYSQL][0].port}}}")
        self.engine = Engine(self.config, "shop")
        self.engine.start()

    def dies(self, victim: str) -> None:
        if victim == ENGINE:
            self.engine.stop()
            return
        line, _ = self.lines[victim]
        line.turn_to(free_port())
        line.cut()

    def revive(self, victim: str) -> None:
        if victim == ENGINE:
            self.engine = Engine(self.config, "shop")
            self.engine.start()
            return
        line, port = self.lines[victim]
        line.turn_to(port)

    def changes_and_is_equal(self) -> None:
        """The stream goes on, and the lake is what the source holds."""
        self.captured.insert([next(NUMBERS)])
        self.merge(self.engine)
        with self.captured.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT n, filler FROM {self.name} WHERE n < 1000")
            assert self.rows() == dict(cursor.fetchall())
        assert not self.engine.status().stopped_tables

    def maintain(self) -> None:
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        done = run_maintenance(
            ports, self.config, MaintainWish(destination="shop", force=True, vacuum=True), print, run="by hand"
        )
        if done.failed:
            raise MergeFailedError(str(done.failed))

    def take_anew(self) -> None:
        """As `sluice snapshot start`, with all that the runs do; once more where it was asked for already."""
        records = SnapshotRecords(self.captured.directory)
        if not any(each.has_work for each in records.all()):
            snapshot.start(self.captured.directory, [self.name])

        def publish(record: Any, table: Any) -> int:
            failpoints.reach(BEFORE_PUBLISH)
            label = spark_publish(self.config, "shop", record, table, "run").label
            failpoints.reach(AFTER_PUBLISH)
            return label

        outside = Outside(
            run_lock=contextlib.nullcontext,
            publish=publish,
            say=print,
            progress=lambda _: failpoints.reach(AFTER_CHUNK),
        )

        def is_published() -> bool:
            self.merge_next(self.engine)
            run_all(snapshot_hands(self.config, "shop", outside), 0.0)
            return not any(each.has_work for each in records.all())

        wait_for("its rows are published", is_published, 120)


@pytest.fixture
def shop(mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer) -> Iterator[Outsides]:
    made = Outsides(tmp_path, mysql80, spark_server)
    made.captured.insert(range(8))
    made.merge(made.engine)
    yield made
    made.engine.stop()
    for line, _ in made.lines.values():
        line.__exit__()


def broken_off(
    shop: Outsides, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *deaths: tuple[str, str]
) -> None:
    """Does it once for each (victim, place), who is gone from there on, and then in peace."""
    for victim, point in deaths:
        reached = list[str]()

        def reach(name: str, victim: str = victim, point: str = point, reached: list[str] = reached) -> None:
            if name == point and not reached:
                reached.append(name)
                shop.dies(victim)

        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            with contextlib.suppress(SluiceError, MergeFailedError):
                act()
        assert reached, f"{victim} at {point}: it never came there"
        shop.revive(victim)
    act()
    shop.changes_and_is_equal()


def test_a_backfill_whose_outsides_die_is_right_when_it_is_done_again_backfill(
    shop: Outsides, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (50, 51):
        shop.insert(number, number)
    shop.merge(shop.engine)
    shop.by_another_hand(f"DELETE FROM delta.`{shop.path}` WHERE n IN (50, 51)")
    broken_off(
        shop,
        monkeypatch,
        lambda: shop.backfill(0),
        (SPARK, BEFORE_BACKFILL),
        (MYSQL, BEFORE_BACKFILL),
        (ENGINE, BEFORE_BACKFILL),
        (SPARK, BETWEEN_BACKFILLED),
        (MYSQL, AFTER_BACKFILL),
    )


def test_a_repair_whose_outsides_die_is_right_when_it_is_done_again_equality(
    shop: Outsides, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = iter([(MYSQL, BEFORE_REPAIR), (SPARK, BEFORE_REPAIR), (ENGINE, BETWEEN_REPAIRED), (MYSQL, AFTER_REPAIR)])
    for death in deaths:
        shop.by_another_hand(f"UPDATE delta.`{shop.path}` SET filler = 'wrong' WHERE n IN (2, 6)")
        broken_off(shop, monkeypatch, shop.repair, death)


def test_maintenance_whose_outsides_die_leaves_all_right_cut(shop: Outsides, monkeypatch: pytest.MonkeyPatch) -> None:
    for death in (
        (SPARK, BEFORE_MAINTENANCE),
        (ENGINE, BEFORE_MAINTENANCE),
        (SPARK, BETWEEN_MAINTAINED),
        (MYSQL, AFTER_MAINTENANCE),
    ):
        broken_off(shop, monkeypatch, shop.maintain, death)
    cut = read_cut(shop.config.lake, "shop")
    assert cut.tables[shop.name].version >= 0


def test_a_snapshot_whose_outsides_die_goes_on_snapshot(shop: Outsides, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.by_another_hand(f"DELETE FROM delta.`{shop.path}` WHERE n = 3")
    broken_off(
        shop,
        monkeypatch,
        shop.take_anew,
        (MYSQL, AFTER_CHUNK),
        (SPARK, BEFORE_PUBLISH),
        (MYSQL, BEFORE_PUBLISH),
        (ENGINE, BEFORE_PUBLISH),
    )
    for death in ((SPARK, AFTER_PUBLISH), (MYSQL, AFTER_PUBLISH), (ENGINE, AFTER_PUBLISH)):
        broken_off(shop, monkeypatch, shop.take_anew, death)
