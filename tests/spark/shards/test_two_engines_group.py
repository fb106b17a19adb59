"""Tests two servers, two engines and one Delta table: from the binlogs to the lake, with snapshots, maintenance and a change of the
location of locks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import yaml

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.lake.accept import Acceptance, accept
from sluice.console.shards_check import shards_sentence
from sluice.console.source.query import known_path_clashes
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent
from sluice.orchestration.base.ports import MergeFailedError, MergeOrder, Ports
from sluice.orchestration.run.maintain_run import MaintainRequest, run_maintenance
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.orchestration.run.spark_publish import spark_publish
from sluice.orchestration.run.table_locks import writers_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

DATABASE = "grouped_1"
NAME = f"{DATABASE}.orders"
SIDES = ("east", "west")


class Side:
    """A destination with its own server and engine. The test itself starts its merges and snapshots."""

    def __init__(self, root: Path, name: str, server: DatabaseServer) -> None:
        self.root, self.name, self.server = root, name, server
        self.engine: Engine
        self.change(
            f"DROP DATABASE IF EXISTS {DATABASE}",
            f"CREATE DATABASE {DATABASE}",
            f"CREATE TABLE {NAME} (id INT PRIMARY KEY, word VARCHAR(40))",
            f"INSERT INTO {NAME} VALUES {', '.join(f'({n}, 1)' for n in range(40))}",
        )
        rule = {"tables": r"grouped_(\d)\.orders", "into": "shop/orders", "column": "shop", "name": "{destination} {1}"}
        conf = {
            "source": {"user": "root", "port": server.port},
            "include": rf"{DATABASE}\..*",
            "snapshots": {"chunk_rows": 9},
            "shards": [rule],
        }
        (root / "conf" / "destinations" / f"{name}.yaml").write_text(yaml.safe_dump(conf))

    def change(self, *statements: str) -> None:
        with self.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    @property
    def config(self) -> SluiceConfig:
        return load_config(self.root / "conf")

    @property
    def directory(self) -> Path:
        return self.config.destination_dir(self.name)

    def merge_next(self) -> bool:
        """Merges the next batch under the run lock, if there is one soon."""
        batch = self.engine.hand_out(0.3)
        if batch is None:
            return False
        path = self.directory / batch.path
        order = MergeOrder(
            config=self.config, destination=self.name, batch_dir=path, tables=batch.tables, run="run", refusal=str
        )
        with destination_files.run_lock(self.directory, 60):
            spark_merge(order, lambda _: None)
        self.engine.ack(batch)
        return True

    def publishes(self) -> bool:
        """Continues the destination's snapshots, and publishes what is complete. Returns whether all snapshots have ended."""

        def publish(record: object, table: object) -> int:
            return spark_publish(self.config, self.name, record, table, "run", refusal=str).label  # type: ignore[arg-type]

        outside = SnapshotCallbacks(
            run_lock=lambda: destination_files.run_lock(self.directory, 60),
            publish=publish,
            say=lambda _: None,
            progress=lambda _: None,
        )
        run_all(snapshot_dependencies(self.config, self.name, outside), 0.0)
        return not any(each.has_work for each in SnapshotRecords(self.directory).all())

    def rows(self) -> dict[int, str]:
        log = deltalake.DeltaTable(f"{self.root}/lake/shop/orders")
        query = f"SELECT id, word FROM t WHERE shop = '{self.name} 1'"
        found = pa.table(deltalake.QueryBuilder().register("t", log).execute(query).read_all())
        assert len({*found["id"].to_pylist()}) == found.num_rows
        return {row["id"]: row["word"] for row in found.to_pylist()}

    def equals(self) -> bool:
        requested = ComparedDestination(self.config, self.name, source_of(self.config.destinations[self.name]))
        (found,) = compare_destination(requested, [NAME], Extent())
        return bool(found.equal)

    def catch_up(self, marker: int) -> None:
        self.change(f"REPLACE INTO {NAME} VALUES ({marker}, 'marker')")
        wait_for(f"{self.name} is merged", lambda: not self.merge_next() and marker in self.rows(), 120)


@pytest.fixture
def sides(
    mysql80: DatabaseServer, mariadb114: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path
) -> Iterator[list[Side]]:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    conf = {"data_dir": f"{tmp_path}/data", "lake": f"{tmp_path}/lake", "spark": {"remote": spark_server.url}}
    (tmp_path / "conf" / "sluice.yaml").write_text(yaml.safe_dump(conf))
    made = [Side(tmp_path, name, server) for name, server in zip(SIDES, (mysql80, mariadb114), strict=True)]
    with contextlib.ExitStack() as running:
        for side in made:
            side.engine = Engine(side.config, side.name)
            side.engine.start()
            running.callback(side.engine.stop)
        yield made


def test_two_servers_fill_one_table_while_one_of_them_is_read_in_a_group(sides: list[Side]) -> None:
    """The snapshot of east has ended before the load begins. Meanwhile the snapshot of west is read and published, while both servers get
    changes.
    """
    east, west = sides
    ending = threading.Event()

    def work(side: Side) -> int:
        merged = step = 0
        while not ending.is_set():
            side.change(
                f"REPLACE INTO {NAME} VALUES ({step % 40}, '{side.name} {step}')",
                f"UPDATE {NAME} SET word = CONCAT(word, '.') WHERE id = {(step * 7) % 40}",
                f"DELETE FROM {NAME} WHERE id = {(step * 3) % 40}",
            )
            merged, step = merged + side.merge_next(), step + 1
            if side is west:
                side.publishes()
        return merged

    def is_published() -> bool:
        return all(each.state == "PUBLISHED" for each in SnapshotRecords(west.directory).all()) and bool(west_rows())

    def west_rows() -> dict[int, str]:
        return west.rows() if (west.root / "lake" / "shop" / "orders" / "_delta_log").exists() else {}

    for side in sides:
        snapshot.start(side.directory, [NAME])
    with ThreadPoolExecutor(3) as pool:
        wait_for("the rows of east are read", lambda: (east.merge_next(), east.publishes())[1], 120)
        working = [pool.submit(work, side) for side in sides]
        try:
            wait_for("the rows of west are published", is_published, 120)
            made = run_maintenance(
                Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge),  # type: ignore[arg-type,return-value]
                east.config,
                MaintainRequest(destination="east", vacuum=True, force=True),
                lambda _: None,
            )
            assert not made.failed
        finally:
            ending.set()
        assert all(each.result() for each in working)
    for side in sides:
        side.catch_up(1000)
        assert side.equals()
    assert east.rows() != west.rows()
    assert known_path_clashes(east.config) == []
    assert shards_sentence(east.config).endswith(f"orders has 'east 1' ({NAME} of east), 'west 1' ({NAME} of west)")
    assert writers_of(east.config, "east", NAME) == {"east": (NAME,), "west": (NAME,)}
    other_locks(east, west)


def other_locks(east: Side, west: Side) -> None:
    """Requires that a run of east is refused if its table locks are at another location than those of west. After an operator has accepted
    the table in both destinations, their runs continue.
    """
    (east.root / "data" / "engine" / "_sluice_tables" / "identity.json").write_text("another")
    east.change(f"REPLACE INTO {NAME} VALUES (2000, 'after it')")
    with pytest.raises(
        MergeFailedError, match=r"whose runs use the locks at \w+; the runs of east use the locks at another"
    ) as caught:
        wait_for("a batch is refused", east.merge_next)
    assert caught.value.tables[NAME].state == "TABLE_OWNED"
    for side in (east, west):
        accept(
            side.config,
            Acceptance(destination=side.name, name=NAME, as_it_is=True),
            confirm=lambda _: True,
            say=lambda _: None,
        )
    for side in (east, west):
        side.catch_up(3000)
    assert east.rows()[2000] == "after it"
