"""Tests tables for which a stage of a batch raises an exception. The tables are chosen at random. They stop by name, and the other tables
equal the source. When the fault is gone, all tables equal the source.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.meta.resume_requests import request
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.staging.table_files import TableFiles
from sluice.cdc_engine.states import SnapshotState
from sluice.cdc_engine.table_meta.history import effects, history
from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.values import Verdict
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.run import consistent_snapshots, table_locks
from sluice.spark_jobs.batch import run_batch
from sluice.spark_jobs.cascades import derive
from sluice.spark_jobs.snapshot import table_buffering
from tests.instance.fix_destination import running
from tests.spark.snapshot.test_changed_settings_snapshot import Shop
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

PLAIN, HELD = tuple(f"t{number}" for number in range(8)), ("h0", "h1")
BELOW = {"c": {"c", "g"}, "b": {"b"}, "g": {"g"}}  # The tables that cannot be followed if this child of p raises.
WRONG = (KeyError("_sluice_operation"), ValueError("odd"), AssertionError(), RecursionError("deep"), TypeError("none"))
# A stage: the owner of its function, the name of the function, and a function that returns the name of the table from its arguments.
Stage = tuple[Any, str, Callable[..., str]]
STAGES: dict[str, Stage] = {
    "table map": (history, "fit", lambda table_map, *_: table_map.table),
    "statement": (effects, "altered", lambda _statement, schema, *_: schema.table),
    "staging": (TableFiles, "add", lambda files, *_: files.table),
    "target": (table_locks, "target", lambda _config, _destination, name: name),
    "merge": (run_batch._BatchWork, "_small_job", lambda _work, staged: staged.table),
    "snapshot": (consistent_snapshots, "_current_state", lambda _config, _destination, _records, name: name),
}
# The state of all other stages is MERGE_FAILED.
STATES = {"table map": "SCHEMA_UNKNOWN", "statement": "SCHEMA_UNKNOWN"}


@contextmanager
def raising(stage: Stage, tables: set[str], error: Exception) -> Iterator[None]:
    """Makes the stage raise for these tables and for no other."""
    where, what, name_of = stage
    real = getattr(where, what)

    def maybe(*given: Any, **named: Any) -> Any:
        if name_of(*given).rpartition(".")[2] in tables:
            raise error
        return real(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, what, maybe)
        yield


class Raising(Shop):
    """A database with plain tables, two tables that a snapshot reads, and one table with children and a grandchild."""

    def make(self) -> None:
        base = self.captured.database
        plain = (f"CREATE TABLE {base}.{name} (id INT PRIMARY KEY, v INT)" for name in (*PLAIN, *HELD, "p"))
        child = "CREATE TABLE {0}.{1} (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES {0}.{2} (id) ON DELETE CASCADE)"
        pairs = (("c", "p"), ("b", "p"), ("g", "c"))
        self.captured.run(*plain, *(child.format(base, name, parent) for name, parent in pairs))

    def write(self, first: int) -> None:
        """Writes ten rows into each table, and changes one of them."""
        base = self.captured.database
        for name in (*PLAIN, *HELD, "p", "c", "b", "g"):
            rows = ", ".join(f"({number}, {number})" for number in range(first, first + 10))
            second = "v" if name in {*PLAIN, *HELD, "p"} else "o"
            self.captured.run(f"INSERT INTO {base}.{name} (id, {second}) VALUES {rows}")
        for name in (*PLAIN, *HELD):
            self.captured.run(f"UPDATE {base}.{name} SET v = -1 WHERE id = {first}")

    def merge_all(self, engine: Engine) -> dict[str, tuple[str, str]]:
        """Merges everything that the source has by now, as ticks do. A table that fails for its own reason stops. Returns the stopped
        tables.
        """
        marker = 1000 + time.monotonic_ns() % 10**9
        self.captured.insert([marker])

        def done() -> bool:
            try:
                return marker in self.merge_next(engine, "run")
            except MergeFailedError as failed:
                error = failed
            batch = engine.outstanding()
            assert batch is not None
            assert error.tables, f"no table is named: {error}"
            engine.stop_tables(batch, {name: (why.state, why.reason) for name, why in error.tables.items()})
            return False

        wait_for("all is merged", done, 180)
        return {each.table: (str(each.state), each.reason) for each in engine.status().stopped_tables}

    def require_equal(self, *without: str) -> None:
        found = self.compared()
        wrong = {name: each.reason for name, each in found.items() if each.verdict is not Verdict.EQUAL}
        assert set(wrong) <= set(without), wrong


@pytest.mark.found
@pytest.mark.parametrize("seed", [1, 2])
def test_tables_that_raise_at_random_in_each_stage_stop_by_name(
    seed: int, mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 25: an exception in one table's schema, staging, target, merge, buffering, cascades or snapshot stopped everything."""
    chance = random.Random(seed)  # noqa: S311  the tables of a test
    shop = Raising(tmp_path, mysql80, spark_server)
    shop.make()
    # Stopped tables are not re-snapshotted automatically before the test has seen them.
    shop.captured.describe("snapshot: never")
    with running(shop.captured) as engine:
        shop.write(0)
        assert shop.merge_all(engine) == {}
        shop.require_equal()
        records = SnapshotRecords(shop.captured.directory)
        for name in HELD:
            records.begin(wanted(f"{shop.captured.database}.{name}", None, time.time()))
        odd = dict(zip(STAGES, chance.sample(PLAIN, len(STAGES)), strict=True))
        held = chance.choice(HELD)
        wrong = chance.choice(WRONG)
        stages = {name: (STAGES[name], {table}) for name, table in odd.items()}
        stages["held"] = ((table_buffering, "buffer_table", lambda staged, *_: staged.table), {held})

        def alter_and_write() -> dict[str, tuple[str, str]]:
            for name in ("table map", "statement"):
                shop.captured.run(f"ALTER TABLE {shop.captured.database}.{odd[name]} ADD w INT")
            shop.write(100)
            return shop.merge_all(engine)

        stopped = _with_all(stages, wrong, alter_and_write)
        assert set(stopped) == {*odd.values(), held}
        for stage, table in odd.items():
            assert stopped[table][0] == STATES.get(stage, "MERGE_FAILED"), (stage, stopped[table])
            assert type(wrong).__name__ in stopped[table][1] or str(wrong) in stopped[table][1], stopped[table]
        shop.require_equal(*stopped, *HELD)
        marked = {
            name.partition(".")[2]: each.stopped
            for name, each in read_consistent_snapshot(shop.config.lake, "shop").tables.items()
        }
        assert {name for name, is_stopped in marked.items() if is_stopped} == {*stopped, *HELD} & set(marked)
        child = chance.choice(["c", "b"])
        shop.captured.run(f"DELETE FROM {shop.captured.database}.p WHERE id IN (1, 2, 105)")
        shop.write(200)
        with raising((derive, "lake_rows", lambda _session, table, *_: table.name), {child}, wrong):
            later = shop.merge_all(engine)
        assert set(later) - set(stopped) == BELOW[child]
        assert later[child][0] == "MERGE_FAILED"
        shop.require_equal(*later, *HELD)
    shop.captured.describe()
    with running(shop.captured) as engine:
        _heal(shop, engine, later)


def _with_all(stages: dict[str, Any], wrong: Exception, act: Callable[[], Any]) -> Any:
    """Calls `act` while every stage raises `wrong` for its tables."""
    if not stages:
        return act()
    name, (stage, tables) = next(iter(stages.items()))
    with raising(stage, tables, wrong):
        return _with_all({each: stages[each] for each in stages if each != name}, wrong, act)


def _heal(shop: Raising, engine: Engine, stopped: dict[str, tuple[str, str]]) -> None:
    """Follows the printed advice: each table that stopped is resumed, and the lake equals the source."""
    for name in stopped:
        request(shop.captured.directory, shop.captured.database, name)
    records = SnapshotRecords(shop.captured.directory)
    for each in records.all():
        if each.state is SnapshotState.FAILED:
            records.update(each.name, lambda now: now.retried())
    shop.settle(engine)
    shop.merge(engine)
    shop.require_equal()
