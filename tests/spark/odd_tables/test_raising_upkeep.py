"""Tests tables that raise in a repair, a backfill, maintenance, a publication or a consistent snapshot. Only these tables are named, and
the others are done.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import deltalake
import pytest

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.rows.schemas import IntervalSchemas
from sluice.cdc_engine.instance.rows.source_rows import SourceRows
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality import destination as equality
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run import consistent_snapshots, table_locks
from sluice.orchestration.run.maintain_run import MaintainRequest, run_maintenance
from sluice.orchestration.run.rows import repair
from sluice.orchestration.run.rows.backfill import run_backfill
from sluice.orchestration.run.rows.repair import Repaired, plan_repair, run_repair
from sluice.orchestration.run.rows.request import BackfillRequest, RepairRequest
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.batch import run_batch
from sluice.spark_jobs.maintain import side_tables, tables
from sluice.spark_jobs.rows import merge as rows_merge
from sluice.spark_jobs.snapshot import publish
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import by_hand
from tests.spark.odd_tables.test_raising_tables import HELD, PLAIN, WRONG, Raising, Stage, _heal, raising
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

SECOND_US = 1_000_000
LOGGED = PLAIN[:4]  # the tables with a history
PORTS = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
MAINTENANCE: dict[str, Stage] = {
    "hours": (tables, "logged_hours", lambda table: table.owner.table),
    "look": (tables, "looked_at", lambda table: table.owner.table),
    "history": (side_tables, "planned", lambda side: side.current_state.owner.table),
}
REPAIR: dict[str, Stage] = {
    "comparison": (equality, "_compare", lambda _requested, _side, schema, *_: schema.table),
    "plan": (repair, "_refusal", lambda _config, _destination, result, _scope: result.table),
    "facts": (IntervalSchemas, "rows_follow", lambda _schemas, _database, table: table),
    "reading": (SourceRows, "read", lambda _rows, name, *_: name),
    "choice": (repair, "_chosen", lambda _scope, rows: rows.name),
    "fold": (rows_merge, "folded", lambda name, *_: name),
    "snapshot": (consistent_snapshots, "_current_state", lambda _config, _destination, _records, name: name),
}
BACKFILL: dict[str, Stage] = {
    "target": (table_locks, "target", lambda _config, _destination, name: name),
    "fold": (rows_merge, "folded", lambda name, *_: name),
    "merge": (rows_merge, "merge_table", lambda _session, _batch, table, *_: table.name),
    "snapshot": (consistent_snapshots, "_current_state", lambda _config, _destination, _records, name: name),
}
PUBLICATION: dict[str, Stage] = {
    "rows": (publish, "publish", lambda _session, given, *_: given.owner.table),
    "snapshot": (consistent_snapshots, "_current_state", lambda _config, _destination, _records, name: name),
}
MERGE: dict[str, Stage] = {
    "history": (run_batch, "write_side_tables", lambda _session, share: share.staged.name),
    "snapshot": (consistent_snapshots, "_side_tables", lambda _config, _destination, _records, name: name),
}


class Upkeep(Raising):
    """The tables of `Raising`, some with a history, and all operations on them outside the stream."""

    def settings(self, *lines: str) -> None:
        named = ", ".join(f"{self.captured.database}.{name}: {{history: true}}" for name in LOGGED)
        self.captured.describe(f"tables: {{{named}}}", *lines)

    def lose_rows(self, names: Sequence[str] = PLAIN) -> None:
        for name in names:
            deltalake.DeltaTable(self.location(name)).delete("id = 1")

    def of(self, names: object) -> set[str]:
        return {str(name).rpartition(".")[2] for name in names}  # type: ignore[attr-defined]

    def repair(self) -> Repaired:
        request = RepairRequest(destination="shop", settle_seconds=120.0)
        plan = plan_repair(self.config, request)
        return run_repair(by_hand(PORTS, self.config, print), request, plan)

    def backfill_plain(self, from_us: int) -> None:
        names = tuple(f"{self.captured.database}.{name}" for name in LOGGED)
        request = BackfillRequest(destination="shop", from_us=from_us, to_us=None, tables=names)
        run_backfill(by_hand(PORTS, self.config, print), request)

    def has_lost(self) -> set[str]:
        return {name for name in PLAIN if not self.lake(name, "id", "id = 1")}


def odd_tables(chance: random.Random, stages: dict[str, Stage], names: tuple[str, ...] = PLAIN) -> dict[str, str]:
    """Chooses one table for each stage. The stages of histories get a table with a history."""
    found: dict[str, str] = {}
    for stage in sorted(stages, key=lambda each: each != "history"):
        among = LOGGED if stage == "history" else names
        found[stage] = chance.choice([name for name in among if name not in found.values()])
    return found


@contextlib.contextmanager
def all_raising(stages: dict[str, Stage], odd: dict[str, str], error: Exception) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for stage, table in odd.items():
            stack.enter_context(raising(stages[stage], {table}, error))
        yield


@pytest.fixture
def shop(mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer) -> Upkeep:
    made = Upkeep(tmp_path, mysql80, spark_server)
    made.make()
    made.settings("snapshot: never")
    return made


@pytest.mark.found
def test_tables_that_raise_in_a_repair_are_named_and_the_others_are_repaired(shop: Upkeep) -> None:
    """Defect 25: an exception in one table's comparison, plan, reading or merge stopped the repair of all tables."""
    with running(shop.captured) as engine:
        shop.write(0)
        assert shop.merge_all(engine) == {}
        shop.lose_rows()
        chance = random.Random(25)  # noqa: S311  the tables of a test
        odd = odd_tables(chance, REPAIR)
        with all_raising(REPAIR, odd, chance.choice(WRONG)):
            done = shop.repair()
        assert shop.of(done.refused) == set(odd.values())
        assert shop.has_lost() == set(odd.values()) - {odd["snapshot"]}
        assert "the rows of the table are correct" in done.refused[f"{shop.captured.database}.{odd['snapshot']}"]
        assert shop.of(each.table for each in done.after) == set(PLAIN) - set(odd.values())
        assert all(each.equal for each in done.after)
        assert shop.repair().all_right
        assert not shop.has_lost()


@pytest.mark.found
def test_tables_that_raise_in_upkeep_are_named_and_the_others_are_done(shop: Upkeep) -> None:
    """Defect 25: an exception in one table's maintenance, backfill, publication, history or consistent snapshot stopped everything."""
    chance = random.Random(25)  # noqa: S311  the tables of a test
    made = time.time()
    wait_for("the tables are older than the rows", lambda: time.time() >= made + 2)
    with running(shop.captured) as engine:
        shop.write(0)
        assert shop.merge_all(engine) == {}
        _maintain(shop, chance)
        _backfill(shop, chance, int(made + 1) * SECOND_US)
        _publish(shop, engine, chance)
        odd = odd_tables(chance, MERGE, LOGGED)
        with all_raising(MERGE, odd, chance.choice(WRONG)):
            shop.write(100)
            stopped = shop.merge_all(engine)
        assert set(stopped) == set(odd.values())
        shop.require_equal(*stopped)
    shop.settings()
    with running(shop.captured) as engine:
        _heal(shop, engine, stopped)


def _maintain(shop: Upkeep, chance: random.Random) -> None:
    """Requires that maintenance reports the tables that raise, and maintains the others. A VACUUM takes seconds of processor time, so only
    some tables are requested.
    """
    odd, requested = odd_tables(chance, MAINTENANCE, LOGGED), (*LOGGED, *HELD)
    with all_raising(MAINTENANCE, odd, chance.choice(WRONG)):
        names = tuple(f"{shop.captured.database}.{name}" for name in requested)
        request = MaintainRequest(destination="shop", tables=names, optimize=False, vacuum=True)
        looked = run_maintenance(PORTS, shop.config, request, print)
    assert shop.of(looked.failed) == set(odd.values())
    assert shop.of(each.name for each in looked.done) >= set(requested) - set(odd.values())


def _backfill(shop: Upkeep, chance: random.Random, from_us: int) -> None:
    shop.lose_rows(LOGGED)
    odd = odd_tables(chance, BACKFILL, LOGGED)
    reported: Callable[[str], str] = f"{shop.captured.database}.{{}}: ".format
    with all_raising(BACKFILL, odd, chance.choice(WRONG)), pytest.raises(MergeFailedError) as failed:
        shop.backfill_plain(from_us)
    assert all(reported(odd[stage]) in str(failed.value) for stage in BACKFILL), failed.value
    assert shop.has_lost() == set(odd.values()) - {odd["snapshot"]}
    shop.backfill_plain(from_us)
    assert not shop.has_lost()


def _publish(shop: Upkeep, engine: Engine, chance: random.Random) -> None:
    """Re-snapshots two tables at a time, of which one raises."""
    records = SnapshotRecords(shop.captured.directory)
    for stage in PUBLICATION.values():
        for name in HELD:
            records.begin(wanted(f"{shop.captured.database}.{name}", None, time.time()))
        odd = chance.choice(HELD)
        (well,) = set(HELD) - {odd}
        names = {each: f"{shop.captured.database}.{each}" for each in HELD}

        def is_reported(well: str = names[well], odd: str = names[odd]) -> bool:
            shop.merge_next(engine)
            with contextlib.suppress(SluiceError, MergeFailedError):
                shop.read_rows()
            states = {each.name: each for each in records.all()}
            return states[well].state is SnapshotState.PUBLISHED and odd in states[odd].reason

        with raising(stage, {odd}, chance.choice(WRONG)):
            wait_for("one is published and the other one is named", is_reported, 120)
        for each in records.all():
            if each.state is SnapshotState.FAILED:
                records.update(each.name, lambda now: now.retried())
        shop.settle(engine)
