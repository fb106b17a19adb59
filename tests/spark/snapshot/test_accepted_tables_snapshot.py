"""Tests the advice that is printed for a Delta table that another writer restored or removed: it leads to a lake that equals the source."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path

import deltalake
import pytest
from typer.testing import CliRunner

from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.lake.accept import Acceptance, accept
from sluice.console.lake.tables import DestinationLake
from sluice.console.main import app
from sluice.console.status.report import find_problems, read_status
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.values import Verdict
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.sensor.giving_up import tables_to_stop
from tests.instance.fix_destination import running
from tests.spark.snapshot.test_changed_settings_snapshot import Shop
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

KINDS = ("keyed", "soft", "logged", "narrow", "loose", "alone")

NUMBERS = itertools.count(1_000_000)


class Crash(BaseException):
    """The simulated end of a process between two of its writes."""


class Restored(Shop):
    """A destination with tables of several kinds. The test merges the batches itself, and stops tables that a merge refuses, as a tick
    does. Nobody restores or removes the table `numbers`.
    """

    tables: tuple[str, ...] = ()

    def begin(self, *tables: str) -> None:
        self.tables = tables
        base = self.captured.database
        for each in tables:
            key = "" if each == "loose" else " PRIMARY KEY"
            self.captured.run(f"CREATE TABLE {base}.{each} (id INT NOT NULL{key}, v INT, w INT DEFAULT 7)")
        said = {
            "soft": "deletes: soft",
            "logged": "history: true, change_log: true",
            "alone": "current_state: false, history: true, change_log: true",
        }
        excluded = f"column_exclude: {base}.narrow:w" if "narrow" in tables else ""
        self.say(excluded, **{name: options for name, options in said.items() if name in tables})

    def write(self, first: int, *names: str) -> None:
        """Inserts two rows into each table, updates rows, and deletes an earlier row if there is one. `names` limits the tables. Also
        inserts a row into `numbers`.
        """
        self.captured.insert([next(NUMBERS)])
        for each in names or self.tables:
            table = f"{self.captured.database}.{each}"
            self.captured.run(
                f"INSERT INTO {table} (id, v) VALUES ({first}, 1), ({first + 1}, 1)",
                f"UPDATE {table} SET v = v + 1 WHERE id IN ({first}, {first - 10})",
                f"DELETE FROM {table} WHERE id = {first - 9}",
            )

    def merge_next(self, engine: Engine, run: str = "") -> list[int]:
        try:
            return super().merge_next(engine, run)
        except MergeFailedError as error:
            (batch,) = read_ledger(self.captured.directory).outstanding
            if stops := tables_to_stop([error.tables]):
                engine.stop_tables(batch, stops)
            else:  # A batch whose tables are all missing waits, because a disk may be away.
                engine.rollback(batch)
                self.captured.insert([next(NUMBERS)])
            return []

    def paths(self, table: str) -> list[str]:
        return (
            [f"{self.location(table)}__history", f"{self.location(table)}__log"]
            if table == "alone"
            else [self.location(table)]
        )

    def versions(self) -> dict[str, int]:
        return {path: deltalake.DeltaTable(path).version() for each in self.tables for path in self.paths(each)}

    def restore(self, versions: dict[str, int]) -> None:
        """Restores versions as another writer."""
        for path, version in versions.items():
            deltalake.DeltaTable(path).restore(version)

    def advice(self, engine: Engine, table: str) -> list[str]:
        """Returns the commands in the text of `sluice status` about a stopped table, in their order."""
        name = f"{self.captured.database}.{table}"

        def said() -> list[str]:
            self.merge_next(engine)
            problems = find_problems([], read_status(self.config).destinations)
            return [each for each in problems if f"the table {name} stopped in the state " in each]

        (sentence,) = wait_for(f"status says that {name} stopped", said, 120)
        return re.findall(r"`(sluice [^`]+)`", sentence)

    def command(self, line: str, *more: str) -> str:
        """Runs a command line of `sluice` with the further arguments `more`, and answers its questions with yes. Returns the output and
        the exception, if there is one.
        """
        answer = CliRunner().invoke(app, [*shlex.split(line)[1:], *more], input="y\n")
        return answer.output + str(answer.exception or "")

    def settled(self, engine: Engine) -> dict[str, Verdict]:
        self.settle(engine)
        self.merge(engine)
        return {name: each.verdict for name, each in self.compared().items()}

    def all_equal(self) -> dict[str, Verdict]:
        return dict.fromkeys((*self.tables, "numbers"), Verdict.EQUAL)


@pytest.fixture
def shop(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> Restored:
    found = Restored(tmp_path, mysql80, spark_server)
    monkeypatch.setenv("SLUICE_CONF", str(found.captured.conf))
    return found


@pytest.mark.found
def test_the_advice_for_a_restored_table_leads_to_an_equal_lake(shop: Restored) -> None:
    """Defect 13: TABLE_RESTORED advised `lake accept` and then `schema resume`. Rows were missing afterwards, and nothing reported that. A
    resume without `lake accept` also succeeded, and the table counted as healthy until its next change.
    """
    shop.begin(*KINDS)
    base = shop.captured.database
    with running(shop.captured) as engine:
        shop.write(10)
        shop.merge(engine)
        before = shop.versions()
        for first in (20, 30):
            shop.write(first)
            shop.merge(engine)
        shop.restore(before)
        shop.write(40)
        advice = {each: shop.advice(engine, each) for each in KINDS}
        shop.write(50)
        for each, commands in advice.items():
            assert commands[-1] == f"sluice schema resume shop {base}.{each}"
            assert set(commands[:-1]) == {f"sluice lake accept shop {base}.{each}"}
            refused = shop.command(commands[-1])
            assert "is not resumed: the Delta table is still" in refused
            assert "TABLE_RESTORED" in refused
            assert commands[0] in refused
        assert {*advice} == {each.table for each in read_ledger(shop.captured.directory).stopped_tables}
        for each, commands in advice.items():
            said = shop.command(commands[0])
            assert "is a RESTORE by another writer" in said
            assert "2 commits of runs are missing (4 inserts, 4 updates, 2 deletes), from binlog." in said
            assert "will be re-snapshotted" in said
            assert ("The table has no key: " in said) is (each == "loose")
            assert ("marked as deleted" in said) is (each == "soft")
            assert ("The change log" in said) is (each in {"logged", "alone"})
        shop.command(advice["keyed"][-1])  # The advice of earlier versions ended with this command.
        assert shop.settled(engine) == shop.all_equal()


@pytest.mark.found
def test_a_restored_table_is_put_right_or_accepted_before_it_stops_or_as_it_is(shop: Restored) -> None:
    """Test for defect 13: one table is restored to its newest version again, one is accepted before it stops, and one is accepted without
    its missing rows.
    """
    shop.begin("calm", "kept", "back")
    base = shop.captured.database
    with running(shop.captured) as engine:
        shop.write(10)
        shop.merge(engine)
        before = shop.versions()
        shop.write(20)
        shop.merge(engine)
        whole = {shop.location("back"): shop.versions()[shop.location("back")]}
        shop.by_another_hand(
            *(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}" for path, version in before.items())
        )
        shop.write(30, "kept", "back")
        kept, back = (shop.advice(engine, each) for each in ("kept", "back"))
        assert "will be re-snapshotted" in shop.command(f"sluice lake accept shop {base}.calm")
        said = shop.command(kept[0], "--as-it-is")
        assert "1 commit of runs is missing (2 inserts, 2 updates, 1 deletes), from binlog." in said
        assert "the lake differs from the source until the missing rows are read" in said
        assert "continues from the position of its stop" in shop.command(kept[-1])
        shop.restore(whole)
        assert "continues from the position of its stop" in shop.command(back[-1])
        assert shop.settled(engine) == {**shop.all_equal(), "kept": Verdict.DIFFERENT}
        (missing,) = re.findall(r"`(sluice snapshot start [^`]+)`", said)
        shop.command(missing)
        assert shop.settled(engine) == shop.all_equal()


@pytest.mark.found
def test_the_advice_for_a_missing_table_leads_to_an_equal_lake(shop: Restored) -> None:
    """Defect 13: TABLE_MISSING advised `lake accept` and then `schema resume`. The new table had only later changes, and nothing reported
    that.
    """
    shop.begin("keyed", "loose", "alone", "back")
    with running(shop.captured) as engine:
        for first in (10, 20):
            shop.write(first)
            shop.merge(engine)
        for path in shop.versions():
            shutil.move(path, f"{path}.away")
        shop.write(30)
        advice = {each: shop.advice(engine, each) for each in shop.tables}
        shop.write(40)
        for commands in advice.values():
            refused = shop.command(commands[-1])
            assert "TABLE_MISSING" in refused
            assert commands[0] in refused
        shutil.move(f"{shop.location('back')}.away", shop.location("back"))
        assert "continues from the position of its stop" in shop.command(advice.pop("back")[-1])
        for each, commands in advice.items():
            assert commands[0] == f"sluice lake accept shop {shop.captured.database}.{each}"
            said = shop.command(commands[0])
            assert "The Delta table is gone, so all rows that runs merged up to " in said
        assert shop.settled(engine) == shop.all_equal()


CRASHES = {
    "before the request to the engine": (snapshot, ("request",)),
    "before the table is taken over": (DestinationLake, ("own", "forget")),
    "before the record of the table": (LakeTables, ("keep", "forget")),
}


@pytest.mark.found
@pytest.mark.parametrize("where", CRASHES)
def test_the_advice_works_again_after_a_crash_of_accept(
    shop: Restored, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Test for defect 13: after a crash of `lake accept`, no table continues while rows are missing."""

    def crash(*_: object, **__: object) -> None:
        raise Crash

    shop.begin("restored", "removed")
    with running(shop.captured) as engine:
        shop.write(10)
        shop.merge(engine)
        first = deltalake.DeltaTable(shop.location("restored")).version()
        shop.write(20)
        shop.merge(engine)
        shop.restore({shop.location("restored"): first})
        shutil.rmtree(shop.location("removed"))
        shop.write(30)
        advice = {each: shop.advice(engine, each) for each in shop.tables}
        for each, commands in advice.items():
            acceptance = Acceptance(destination="shop", name=f"{shop.captured.database}.{each}")
            owner, names = CRASHES[where]
            with monkeypatch.context() as patch:
                for name in names:
                    patch.setattr(owner, name, crash)
                with pytest.raises(Crash):
                    accept(shop.config, acceptance, confirm=lambda _: True, say=print)
            for line in reversed(commands):
                shop.command(line)
        assert shop.settled(engine) == shop.all_equal()
