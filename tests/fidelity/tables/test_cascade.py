"""Tests foreign keys that act below the binlog, from real servers to the lake: the lake's tables equal SELECT."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import ChangesSegment, StagedTable, TruncateSegment
from sluice.cdc_engine.staging import StagingResult
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch import run_batch
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.cascades import files as cascade_files
from sluice.spark_jobs.cascades import rows as cascade_rows
from sluice.spark_jobs.cascades.derive import carried_out
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.merging.merge import merge_table
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.fidelity.pipeline import Pipeline, images, run
from tests.fidelity.tables.cascade_tree import (
    DATABASE,
    KEYS_OF_CHILDREN,
    NAMES,
    TABLES,
    TABLES_OF_PRIMARY_KEYS,
    statements,
)

KEYS = {"l": (), "k": ("a", "b"), "kk": ("x", "y", "z")}
Rows = Counter[tuple[Any, ...]]


def begun(server: DatabaseServer, folder: Path, image: str = "FULL") -> Pipeline:
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *(TABLES if image == "FULL" else TABLES_OF_PRIMARY_KEYS), database=DATABASE)
    return Pipeline.of(server, DATABASE, folder)


def play(server: DatabaseServer, seed: int, count: int, names: tuple[str, ...] = NAMES, image: str = "FULL") -> int:
    """Executes statements about the named tables for which the images (MINIMAL) contain everything. Returns how many of them the server
    accepted.
    """
    taken = 0
    with server.connect(database=DATABASE, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET time_zone = '+00:00', binlog_row_image = {image}")
        for statement in statements(seed, count):
            if image != "FULL" and KEYS_OF_CHILDREN.search(statement):
                continue
            named = set(re.findall(r"(?:FROM|INTO|UPDATE|JOIN) (\w+)", statement)) - {"id"}
            if not named <= set(names):
                continue
            with contextlib.suppress(pymysql.MySQLError):
                cursor.execute(statement)
                taken += 1
    return taken


def selected(server: DatabaseServer, table: str) -> Rows:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM {table}")
        return Counter(tuple(row) for row in cursor.fetchall())


def folded(table: StagedTable, key: tuple[str, ...]) -> Rows:
    """Returns what the images of a batch give for an empty table, as the merge does."""
    rows: dict[Any, dict[str, Any]] = {}
    log: Rows = Counter()
    for segment in table.segments:
        if isinstance(segment, TruncateSegment):
            rows, log = {}, Counter()
        if not isinstance(segment, ChangesSegment):
            continue
        names = [column.name for column in segment.columns]
        moving: dict[str, Any] = {}
        for image in pq.read_table(segment.file).to_pylist():
            present = image.get("_sluice_present_0", (1 << len(names)) - 1)
            values = {name: plain(image[name]) for bit, name in enumerate(names) if present >> bit & 1}
            there = image["_sluice_operation"] in {1, 3}
            log[tuple(values.values())] += 1 if there else -1
            before = rows.pop(tuple(image[name] for name in key), {})
            known = {**(moving if image.get("_sluice_moved") else before), **values}
            if there:
                rows[tuple(image[name] for name in key)] = {name: known[name] for name in names}
            moving = before
    return Counter(tuple(row.values()) for row in rows.values()) if key else +log


def plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


@pytest.mark.servers
@pytest.mark.parametrize(
    ("server", "image", "seeds"),
    [
        ("mysql80", "FULL", 9),
        ("mariadb114", "FULL", 9),
        ("mysql57", "FULL", 2),
        ("mariadb1011", "FULL", 2),
        ("mysql80", "MINIMAL", 3),
        ("mysql57", "MINIMAL", 1),
        ("mariadb114", "MINIMAL", 3),
        ("mariadb114", "FULL_NODUP", 1),
        ("mysql80", "NOBLOB", 1),
    ],
)
def test_random_cascades_are_in_the_staged_images(
    server: str, image: str, seeds: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The test uses no Spark, so it can execute many statements. The lake is empty at the beginning."""
    source: DatabaseServer = request.getfixturevalue(server)
    derived = 0
    for seed in range(seeds):
        pipeline = begun(source, tmp_path / str(seed), image)
        assert play(source, seed, 250, image=image) > 100
        staged = pipeline.staged()
        assert not staged.stopped, [(each.table, each.reason) for each in staged.stopped]
        batch = read_staged_batch(staged.path)
        targets = {table.name: TableTarget(path=str(tmp_path / "none" / table.name)) for table in batch.tables}
        lake_session: Any = None
        carried, refused = carried_out(lake_session, batch, targets, {})
        assert not refused
        tables = {table.table: table for table in carried.tables}
        for name in NAMES:
            found = folded(tables[name], KEYS.get(name, ("id",))) if name in tables else Counter()
            assert found == selected(source, name), (seed, name)
        derived += sum(table.rows for table in carried.tables) - sum(table.rows for table in batch.tables)
    assert derived > 10 * seeds


def lake_rows(path: Path, table: str) -> Rows:
    if not path.exists():
        return Counter()
    log = deltalake.DeltaTable(str(path))
    names = [field.name for field in log.schema().fields if not field.name.startswith("_sluice_")]
    columns = ", ".join(f'"{name}"' for name in names)
    alive = "NOT coalesce(_sluice_deleted, false)" if table == "e" else "true"
    sign = "CASE WHEN _sluice_operation IN ('insert', 'update_postimage') THEN 1 ELSE -1 END" if table == "l" else "1"
    query = f"SELECT {columns}, {sign} AS sign FROM t WHERE {alive}"
    found = deltalake.QueryBuilder().register("t", log).execute(query).read_all()
    rows: Rows = Counter()
    for row in pa.table(found).to_pylist():
        rows[tuple(plain(row[name]) for name in names)] += row["sign"]
    return +rows


MERGED = ("p", "c", "e", "l")


@dataclasses.dataclass
class Lake:
    """The tables that Spark made from the batches so far."""

    pipeline: Pipeline
    settings: SparkSettings
    folder: Path
    names: tuple[str, ...] = MERGED
    left_out: frozenset[str] = frozenset()
    way: Literal["spark", "small"] = "spark"

    def stage(self, **options: Any) -> StagingResult:
        """Stages everything since the last batch."""
        staged = self.pipeline.staged(**options)
        assert not staged.stopped, [(each.table, each.reason) for each in staged.stopped]
        self.pipeline.begin = type(self.pipeline.begin).from_json(dict(staged.manifest.end))
        return staged

    def merge(self, staged: StagingResult) -> None:
        targets = {
            f"{DATABASE}.{table.table}": TableTarget(
                path=str(self.folder / table.table),
                deletes="soft" if table.table == "e" else "hard",
                merge=self.way,
            )
            for table in staged.manifest.tables
            if table.table not in self.left_out
        }
        merge_batch(read_staged_batch(staged.path), targets, self.settings)

    def require_equal(self) -> None:
        for name in self.names:
            assert lake_rows(self.folder / name, name) == selected(self.pipeline.server, name), name


Way = Literal["spark", "small"]
PLAYED: tuple[tuple[str, str, Way], ...] = (
    ("mysql80", "FULL", "spark"),
    ("mariadb114", "FULL", "small"),
    ("mysql80", "MINIMAL", "small"),
    ("mariadb114", "MINIMAL", "spark"),
)


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.parametrize("played", PLAYED, ids=" ".join)
def test_random_cascades_over_several_batches_are_in_the_lake(
    played: tuple[str, str, Way], spark_server: SparkConnectServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The second batch is merged twice, the second time from the stored derived changes. Then everything is read and merged again from the
    beginning.
    """
    server, image, way = played
    source: DatabaseServer = request.getfixturevalue(server)
    pipeline = begun(source, tmp_path, image)
    first = pipeline.begin
    lake = Lake(pipeline, SparkSettings(remote=spark_server.url), tmp_path / "lake", way=way)
    play(source, 101, 150, MERGED, image)
    lake.merge(lake.stage())
    lake.require_equal()
    play(source, 102, 100, MERGED, image)
    second = lake.stage()
    for _ in range(2):
        lake.merge(second)
        lake.require_equal()
    if image == "FULL":
        pipeline.begin = first
        lake.merge(lake.stage())
        lake.require_equal()


# Each type of key has four values in SQL: one that is deleted, one that is changed, the new value of the changed one, and one that stays.
KEY_TYPES = {
    "binary(16)": ("x'00010203040506070809000000000000'", "x'FF'", "x'01'", "x'00'"),
    "varbinary(20)": ("x'0001'", "x'FF'", "''", "x'41'"),
    "char(36)": ("'6ccd780c-baba-1026-9564-5b8c656024db'", "'b'", "'c'", "'d'"),
    "varchar(20)": ("'zwölf'", "'d\\'or'", "'日本'", "'x y'"),
    "bigint unsigned": ("18446744073709551615", "2", "9223372036854775808", "0"),
    "decimal(20,4)": ("1.5000", "-2.25", "99999.0001", "0"),
    "double": ("0.1", "-2.5", "1e300", "0"),
    "date": ("'2024-02-29'", "'0001-01-01'", "'9999-12-31'", "'1969-12-31'"),
    "datetime(6)": (
        "'2024-02-29 01:02:03.000004'",
        "'1000-01-01 00:00:00'",
        "'9999-12-31 23:59:59.999999'",
        "'1970-01-01 00:00:00'",
    ),
    "timestamp(3) NULL": (
        "'2024-03-31 02:30:00.125'",
        "'1970-01-01 00:00:01'",
        "'2038-01-19 03:14:07.999'",
        "'2000-01-01 00:00:00'",
    ),
    "time(2)": ("'-838:59:59'", "'00:00:01.25'", "'10:11:12'", "'00:00:00'"),
    "year": ("2024", "1901", "2155", "2000"),
    "bit(9)": ("511", "1", "2", "0"),
    "enum('a','b','c','d')": ("'a'", "'b'", "'c'", "'d'"),
}


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.parametrize(("server", "way"), [("mysql80", "spark"), ("mariadb114", "small")])
def test_cascades_of_keys_of_every_type_find_their_rows_in_the_lake_fidelity(
    server: str, way: Way, spark_server: SparkConnectServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One child has a foreign key of each type. Its parents are not merged."""
    source: DatabaseServer = request.getfixturevalue(server)
    names = [f"p{number}" for number in range(len(KEY_TYPES))]
    parents = [
        f"CREATE TABLE {name} (k {of_type.removesuffix(' NULL')} PRIMARY KEY)"
        for name, of_type in zip(names, KEY_TYPES, strict=True)
    ]
    columns = [f"k_{name} {of_type}" for name, of_type in zip(names, KEY_TYPES, strict=True)]
    keys = [f"FOREIGN KEY (k_{name}) REFERENCES {name} (k) ON DELETE SET NULL ON UPDATE CASCADE" for name in names]
    run(source, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(source, *parents, f"CREATE TABLE c (id int PRIMARY KEY, {', '.join([*columns, *keys])})", database=DATABASE)
    pipeline = Pipeline.of(source, DATABASE, tmp_path)
    settings = SparkSettings(remote=spark_server.url)
    lake = Lake(pipeline, settings, tmp_path / "lake", ("c",), frozenset(names), way)
    values = list(zip(*KEY_TYPES.values(), strict=True))
    for number, name in enumerate(names):
        gone, changed, _, stays = (row[number] for row in values)
        run(source, f"INSERT INTO {name} VALUES ({gone}), ({changed}), ({stays})", database=DATABASE)
    rows = [f"({number}, {', '.join(values[at])})" for number, at in enumerate((0, 1, 3, 0))]
    run(source, f"INSERT INTO c VALUES {', '.join(rows)}", database=DATABASE)
    lake.merge(lake.stage())
    for number, name in enumerate(names):
        gone, changed, to, _ = (row[number] for row in values)
        changes = (f"DELETE FROM {name} WHERE k = {gone}", f"UPDATE {name} SET k = {to} WHERE k = {changed}")
        run(source, *changes, database=DATABASE)
    lake.merge(lake.stage())
    found = lake_rows(tmp_path / "lake" / "c", "c")
    run(source, "UPDATE c SET id = id + 10", database=DATABASE)
    reported = [row for row in images(lake.stage(), "c").to_pylist() if row["_sluice_operation"] == 3]
    expected = Counter((row["id"] - 10, *(plain(row[f"k_{name}"]) for name in names)) for row in reported)
    assert found == expected, "what row events of the child say afterwards"
    assert sum(value is None for row in found for value in row) == 2 * len(names)


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.parametrize(
    "rows", ["(10, 1, NULL), (11, 1, NULL), (12, 1, NULL)", "(10, 1, NULL), (11, 2, 10), (12, 2, 11)"]
)
def test_a_cascade_over_too_many_rows_stops_its_table_and_the_tables_below(
    rows: str,
    mysql80: DatabaseServer,
    spark_server: SparkConnectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Depending on `rows`, the cascade's rows are loaded at once, or level by level. Other tables of the batch are merged."""
    key = "FOREIGN KEY ({}) REFERENCES {} (id) ON DELETE CASCADE"
    keys = f"{key.format('up', 'p')}, {key.format('boss', 'c')}"
    tables = (
        "CREATE TABLE p (id int PRIMARY KEY)",
        f"CREATE TABLE c (id int PRIMARY KEY, up int, boss int, {keys})",
        f"CREATE TABLE e (id int PRIMARY KEY, up int, {key.format('up', 'c')})",
    )
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(mysql80, *tables, database=DATABASE)
    lake = Lake(Pipeline.of(mysql80, DATABASE, tmp_path), SparkSettings(remote=spark_server.url), tmp_path / "lake")
    inserted = ("p VALUES (1), (2)", f"c VALUES {rows}", "e VALUES (100, 10), (101, 12)")
    run(mysql80, *(f"INSERT INTO {each}" for each in inserted), database=DATABASE)
    lake.merge(lake.stage())
    run(mysql80, "DELETE FROM p WHERE id = 1", database=DATABASE)
    staged = lake.stage()
    with monkeypatch.context() as limited:
        limited.setattr(cascade_rows, "ROWS_MAX", 2)
        with pytest.raises(MergeError) as refused:
            lake.merge(staged)
    assert {error.table for error in refused.value.errors} == {f"{DATABASE}.c", f"{DATABASE}.e"}
    assert {error.state for error in refused.value.errors} == {"CASCADE_UNSEEN"}
    (reason,) = (error.reason for error in refused.value.errors if error.table == f"{DATABASE}.c")
    assert "more than 2 rows of the table" in reason
    assert "re-snapshot the table with `sluice snapshot start`" in reason
    assert lake_rows(lake.folder / "p", "p") == selected(mysql80, "p")


class KilledError(Exception):
    """The simulated end of the process."""


# For each batch, its killed runs in order. Each entry names the tables that the run does not merge. An empty entry kills the run before any
# derived change is stored. The first batch merges children before their parents, the second one merges parents before their children.
FAILURES: tuple[tuple[tuple[str, ...], ...], ...] = (((), MERGED, ("p",)), (("c", "e", "l"), ("e",)))


@pytest.mark.servers
@pytest.mark.spark
def test_fault_a_run_killed_between_the_tables_that_cascades_change_is_finished_by_the_next(
    mysql80: DatabaseServer,
    spark_server: SparkConnectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two batches each have several killed runs (FAILURES), and the last run completes the batch. One server suffices, because the code
    after staging does not depend on the server.
    """
    lake = Lake(begun(mysql80, tmp_path), SparkSettings(remote=spark_server.url), tmp_path / "lake")
    play(mysql80, 201, 150, MERGED)
    lake.merge(lake.stage())
    for number, failures in enumerate(FAILURES):
        play(mysql80, 202 + number, 120, MERGED)
        staged = lake.stage()
        for left in failures:
            with monkeypatch.context() as killed:
                if not left:
                    killed.setattr(cascade_files, "keep", fail)
                killed.setattr(run_batch, "merge_table", without(left, merge_table))
                with pytest.raises((KilledError, MergeError)):
                    lake.merge(staged)
            assert (staged.path / "derived" / "derived.json").exists() == bool(left)
            merged = [name for name in MERGED if lake_rows(lake.folder / name, name) == selected(mysql80, name)]
            assert not set(left) & set(merged), "the batch changes what was not merged"
            assert not left or set(merged) == set(MERGED) - set(left)
        lake.merge(staged)
        lake.require_equal()
    _require_a_stop_where_the_files_of_a_batch_are_lost(lake, monkeypatch)


def _require_a_stop_where_the_files_of_a_batch_are_lost(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the tables below a child stop if the files of a batch are lost after the child was merged. The derived changes of these
    tables were only in these files.
    """
    source = lake.pipeline.server
    rows = (
        "INSERT INTO p VALUES (90, NULL, 'w90')",
        "INSERT INTO c (id, p_code) VALUES (90, 'w90')",
        "INSERT INTO e VALUES (90, 90)",
    )
    run(source, *rows, database=DATABASE)
    lake.merge(lake.stage())
    begin = lake.pipeline.begin
    run(source, "DELETE FROM p WHERE id = 90", database=DATABASE)
    lost = lake.stage()
    with monkeypatch.context() as killed:
        killed.setattr(run_batch, "merge_table", without(("e",), merge_table))
        with pytest.raises(MergeError):
            lake.merge(lost)
    shutil.rmtree(lost.path)
    lake.pipeline.begin = begin
    again = lake.stage(again_up_to=lost.manifest.end_order_key)
    with pytest.raises(MergeError) as refused:
        lake.merge(again)
    assert {error.table for error in refused.value.errors} == {f"{DATABASE}.e", f"{DATABASE}.l"}, "all that is below"
    for error in refused.value.errors:
        assert (error.state, error.for_good) == ("CASCADE_UNSEEN", True)
        assert "which are merged already and whose files were removed" in error.reason
    for name in ("p", "c"):
        assert lake_rows(lake.folder / name, name) == selected(source, name), name


def fail(*_: Any) -> None:
    raise KilledError


def without(names: tuple[str, ...], merge: Callable[..., TableReport]) -> Callable[..., TableReport]:
    """Returns a function that merges like `merge`, but raises KilledError for the tables in `names`."""

    def merged(lake_session: Any, batch: Any, table: StagedTable, *args: Any, **options: Any) -> TableReport:
        if table.table in names:
            raise KilledError
        return merge(lake_session, batch, table, *args, **options)

    return merged
