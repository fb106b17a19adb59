"""Tests snapshots of tables whose rows change through foreign keys while parent rows are deleted. Each snapshot must end, and the lake must
equal the source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pymysql
import pytest

from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.record import RESTARTS_MAX, SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.acts.snapshot import snapshots
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent
from sluice.orchestration.run.spark_publish import spark_publish
from tests.fidelity.tables.cascade_tree import NAMES as TREE_NAMES
from tests.fidelity.tables.cascade_tree import TABLES as TREE
from tests.fidelity.tables.cascade_tree import statements
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

CHUNK_ROWS = 25
BATCHES_MAX = 6
CHANGES_A_BATCH = 3
PARENTS, CHILDREN = 200, 200
TABLES = (
    "CREATE TABLE parent (id int PRIMARY KEY, code varchar(9) NOT NULL UNIQUE)",
    """CREATE TABLE child (id int PRIMARY KEY, up int, word varchar(20),
       FOREIGN KEY (up) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)""",
    """CREATE TABLE loose (id int PRIMARY KEY, up varchar(9), word varchar(20),
       FOREIGN KEY (up) REFERENCES parent (code) ON DELETE SET NULL ON UPDATE CASCADE)""",
)


@pytest.fixture
def source(request: pytest.FixtureRequest) -> DatabaseServer:
    server: DatabaseServer = request.getfixturevalue(request.param)
    return server


@dataclasses.dataclass
class Family:
    """A destination whose snapshots the test advances. `between` is called after each chunk that is read."""

    pipeline: Pipeline
    engine: Engine
    between: Callable[[], None] = lambda: None
    events: Iterator[int] = dataclasses.field(default_factory=lambda: iter(range(1, PARENTS)))

    @property
    def records(self) -> SnapshotRecords:
        return SnapshotRecords(self.pipeline.captured.directory)

    def run(self, *statements: str) -> None:
        self.pipeline.captured.run(f"USE {self.pipeline.captured.database}", *statements)

    def names(self, *tables: str) -> list[str]:
        return [f"{self.pipeline.captured.database}.{each}" for each in tables]

    def record(self, table: str) -> SnapshotRecord:
        found = self.records.get(self.names(table)[0])
        assert found is not None
        return found

    def start(self, *tables: str) -> None:
        snapshot.start(self.pipeline.captured.directory, self.names(*tables))

    def read(self) -> None:
        """Does everything that a run of the snapshot job can do now."""
        outside = SnapshotCallbacks(
            run_lock=contextlib.nullcontext, publish=self._publish, say=print, progress=lambda _: self.between()
        )
        run_all(snapshot_dependencies(self.pipeline.config, "shop", outside), 0.0)

    def _publish(self, record: object, table: object) -> int:
        done = spark_publish(self.pipeline.config, "shop", record, table, "run", refusal=str)  # type: ignore[arg-type]
        return done.label

    def buffered(self) -> int:
        """Returns how many changes of parent rows wait for a publication, as `snapshot status --json` shows them."""
        return sum(each.to_json(0.0)["cascade_changes"] for each in snapshots(self.pipeline.config, "shop"))

    def lake(self, table: str, condition: str) -> list[str]:
        path = self.pipeline.config.table_path("shop", self.pipeline.captured.database, table)
        rows = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
        found = rows.execute(f"SELECT id, up, word FROM t WHERE {condition}").read_all()
        return sorted(map(repr, pa.table(found).to_pylist()))

    def is_open(self) -> bool:
        return any(each.has_work for each in self.records.all())

    def publish_all(self) -> None:
        def is_published() -> bool:
            self.pipeline.merge_next(self.engine)
            self.read()
            return not self.is_open()

        wait_for("every table is published", is_published, 200)
        assert {each.state for each in self.records.all()} == {SnapshotState.PUBLISHED}

    def compare(self, *tables: str) -> None:
        self.pipeline.merge(self.engine)
        requested = ComparedDestination(
            self.pipeline.config, "shop", source_of(self.pipeline.config.destinations["shop"])
        )
        for found in compare_destination(requested, self.names(*tables), Extent()):
            assert found.equal, found


@contextlib.contextmanager
def family(
    server: DatabaseServer, spark: SparkConnectServer, root: Path, tables: Sequence[str], *rows: str
) -> Iterator[Family]:
    pipeline = Pipeline(root, server, spark)
    sides = {f"{pipeline.captured.database}.loose": {"deletes": "soft", "history": True, "change_log": True}}
    pipeline.captured.describe(
        f"snapshots: {json.dumps({'chunk_rows': CHUNK_ROWS, 'readers': 1})}",
        f"tables: {json.dumps(sides)}",
        "schema_changes: {rename: apply}",
    )
    pipeline.captured.run("SET sql_log_bin = 0", f"USE {pipeline.captured.database}", *tables, *rows)
    with running(pipeline.captured) as engine:
        pipeline.merge(engine)
        yield Family(pipeline, engine)


def busy(made: Family) -> Callable[[], None]:
    """Returns a function that changes three parents: one is deleted and inserted again with other children, one gets another id and code,
    and one is deleted.
    """

    def change() -> None:
        n = next(made.events)
        gone, moved, left = 7 * n % PARENTS + 1, (7 * n + 2) % PARENTS + 1, (7 * n + 4) % PARENTS + 1
        made.run(
            f"DELETE FROM parent WHERE id = {gone}",
            f"INSERT IGNORE INTO parent VALUES ({gone}, 'c{gone}')",
            f"INSERT IGNORE INTO child VALUES ({gone}, {gone}, 'again {n}')",
            f"UPDATE parent SET id = id + 1000, code = CONCAT('m', id) WHERE id = {moved}",
            f"DELETE FROM parent WHERE id = {left}",
        )

    return change


@pytest.mark.found
@pytest.mark.parametrize("source", ["mysql80", "mysql57"], indirect=True)
def test_the_snapshot_of_a_child_ends_though_parents_go_in_every_batch(
    source: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    """Tests both kinds: an initial snapshot, and a re-snapshot of a table with column mapping."""
    numbers = range(1, CHILDREN + 1)
    rows = (
        f"INSERT INTO parent VALUES {', '.join(f'({n}, {n!r})' for n in range(1, PARENTS + 1))}",
        "UPDATE parent SET code = CONCAT('c', id)",
        f"INSERT INTO child VALUES {', '.join(f'({n}, {n * 7 % PARENTS + 1}, {n!r})' for n in numbers)}",
        "INSERT INTO loose SELECT child.id, code, word FROM child JOIN parent ON parent.id = up",
    )
    with family(source, spark_server, tmp_path, TABLES, *rows) as made:
        change = busy(made)
        # The first round is an initial snapshot. The second round is a re-snapshot, whose table has mapped columns after the rename.
        for column, after in (("word", "text"), ("text", "words")):
            made.start("child", "loose")
            made.between = change
            batches = buffered = 0
            while made.is_open():
                assert batches < BATCHES_MAX, made.records.all()
                # On a fast machine, the snapshot ends after a single batch, so each batch has several changes of the parents.
                for _ in range(CHANGES_A_BATCH):
                    change()
                made.pipeline.merge(made.engine)
                buffered += made.buffered()
                made.read()
                batches += 1
            assert buffered > PARENTS / CHUNK_ROWS
            assert made.record("child").state == made.record("loose").state == SnapshotState.PUBLISHED
            assert made.record("child").restarts == made.record("loose").restarts == 0
            made.between = lambda: None
            made.compare("child", "loose")
            assert made.lake("loose__history", "is_current") == made.lake("loose", "NOT _sluice_deleted")
            made.run(f"ALTER TABLE child CHANGE {column} {after} varchar(20)")
            made.pipeline.merge(made.engine)


@pytest.mark.found
def test_a_snapshot_that_is_read_again_too_often_fails_by_name_and_its_advice_ends_equal(
    mysql80: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    """Defect 15: nothing limited how often all chunks were read again, and no state reported the repetitions. Rows that refer to rows of
    their own table are still read again, because the rows between them are not known.
    """
    tables = (
        "CREATE TABLE tree (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE)",
        f"INSERT INTO tree VALUES {', '.join(f'({n}, {n // 2 or None!r})'.replace('None', 'NULL') for n in range(1, 120))}",
    )
    with family(mysql80, spark_server, tmp_path, tables) as made:
        made.start("tree")
        goes = iter(range(119, 40, -1))
        made.between = lambda: made.run(f"DELETE FROM tree WHERE id = {next(goes)}")
        for _ in range(2 * RESTARTS_MAX):
            made.read()
            if made.record("tree").state == SnapshotState.FAILED:
                break
            made.between()
            made.pipeline.merge_next(made.engine)
        failed = made.record("tree")
        assert failed.reason.startswith("CASCADE_UNSEEN: the rows were read again 8 times")
        assert failed.restarts == RESTARTS_MAX
        made.between = lambda: None
        made.run("DELETE FROM tree WHERE id = 7")
        made.pipeline.merge(made.engine)
        assert made.record("tree").state == SnapshotState.FAILED, "it goes on by itself"
        snapshot.go_on(made.pipeline.captured.directory, failed.name)
        made.publish_all()
        made.compare("tree")


@pytest.mark.found
@pytest.mark.parametrize("source", ["mysql80", "mariadb114"], indirect=True)
def test_random_trees_of_foreign_keys_are_read_while_they_change(
    source: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    """Test for defect 15: the trees have several levels, keys that refer to two columns, keys that change, SET NULL, and a table without a
    key.
    """
    with family(source, spark_server, tmp_path, TREE) as made:
        changes = statements(seed=15, count=10_000)

        def change(count: int) -> None:
            with made.pipeline.captured.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"USE {made.pipeline.captured.database}")
                for statement in itertools.islice(changes, count):
                    with contextlib.suppress(pymysql.MySQLError):
                        cursor.execute(statement)
                connection.commit()

        change(150)
        made.pipeline.merge(made.engine)
        made.start(*TREE_NAMES)
        made.between = lambda: change(2)
        buffered = 0
        for _ in range(5):
            change(12)
            made.pipeline.merge_next(made.engine)
            buffered += made.buffered()
            made.read()
        assert buffered
        made.between = lambda: None
        made.publish_all()
        made.compare(*TREE_NAMES)
