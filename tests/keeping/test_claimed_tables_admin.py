"""Tests a file that appears in conf/destinations at run time and captures tables whose Delta tables another destination writes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import EngineStartingError, SluiceError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.keeping import launcher
from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.in_use import VARIABLE
from sluice.cdc_engine.keeping.keeper import Keeper
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.orchestration.run.table_locks import written_target
from sluice.spark_jobs.errors import TableError
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for


class Stack:
    """Watches a conf/ and keeps its engines running, as an engine process does."""

    def __init__(self, captured: Captured) -> None:
        self.captured, self.watch = captured, ConfWatch(captured.conf, "test")
        self._keeper = Keeper(launcher)

    def put(self, name: str, *lines: str) -> None:
        port, database = self.captured.server.port, self.captured.database
        text = "\n".join([f"source: {{user: root, port: {port}}}", f"include: {database}\\..*", *lines, ""])
        (self.captured.conf / "destinations" / f"{name}.yaml").write_text(text)

    def look(self) -> None:
        """Checks conf/ twice, because a change of conf/ takes effect only at the second check."""
        for _ in range(2):
            self.watch.look()
            self._keeper.look(self.watch.in_use)

    def state(self, name: str) -> tuple[str, str]:
        path = self.watch.in_use.config.destination_dir(name) / "status.json"
        record = json.loads(path.read_text()) if path.exists() else {}
        return record.get("state", ""), record.get("reason", "")

    def end(self) -> None:
        self._keeper.wait(60)
        for name in self.watch.in_use.config.destinations:
            launcher.put_away(name)


def engine(name: str) -> Engine | None:
    with contextlib.suppress(EngineStartingError):
        return launcher.get_or_start(name)
    return None


def next_batch(name: str) -> OutstandingBatch | None:
    running = engine(name)
    return running.hand_out(0.5) if running is not None else None


@pytest.fixture
def stack(mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setenv(VARIABLE, "")
    captured = Captured(tmp_path, mysql80)
    monkeypatch.setenv("SLUICE_CONF", str(captured.conf))
    made = Stack(captured)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.servers
@pytest.mark.found
def test_admin_a_new_file_that_captures_tables_of_another_destination_is_not_started(stack: Stack) -> None:
    """Defect 9: the new destination was started, because conf/ does not name its tables one by one. Two destinations then wrote one Delta
    table.
    """
    stack.look()
    wait_for("shop runs", lambda: stack.state("shop")[0] == "RUNNING")
    stack.put("aaa")
    stack.look()
    wait_for("aaa is refused", lambda: stack.state("aaa")[0] == "CONFIGURATION")
    path = stack.watch.in_use.config.table_path("shop", stack.captured.database, "numbers")
    assert f"{stack.captured.database}.numbers of shop have the same Delta path {path}" in stack.state("aaa")[1]
    assert "aaa is not started, and the other destinations continue" in stack.state("aaa")[1]
    with pytest.raises(SluiceError, match="same Delta path"):
        wait_for("the start is tried again, and refused", lambda: engine("aaa"))
    directory = stack.watch.in_use.config.destination_dir("aaa")
    assert read_ledger(directory).cursor is None
    assert not (directory / "tables.json").exists(), "it has no assets"
    stack.captured.insert([1])
    assert wait_for("shop goes on", lambda: next_batch("shop")).tables == (f"{stack.captured.database}.numbers",)
    stack.put("aaa", 'table_path: "aaa/{database}/{table}"')
    stack.look()
    wait_for("with Delta tables of its own it runs", lambda: stack.state("aaa")[0] == "RUNNING")


@pytest.mark.servers
@pytest.mark.found
def test_admin_of_two_new_files_for_the_same_tables_one_is_started(stack: Stack) -> None:
    """Test for defect 9: both new destinations start at the same time, before either of them has a list of tables."""
    (stack.captured.conf / "destinations" / "shop.yaml").unlink()
    stack.look()
    stack.put("one")
    stack.put("two")
    stack.look()
    wait_for(
        "one runs, one is refused",
        lambda: {stack.state(each)[0] for each in ("one", "two")} == {"RUNNING", "CONFIGURATION"},
    )


@pytest.mark.servers
@pytest.mark.found
def test_admin_a_destination_that_runs_is_started_again_whatever_a_new_file_captures(stack: Stack) -> None:
    """Test for defect 9: after both destinations are started again, the earlier one runs, and the new one is still refused."""
    stack.look()
    wait_for("shop runs", lambda: stack.state("shop")[0] == "RUNNING")
    stack.put("aaa")
    stack.look()
    wait_for("aaa is refused", lambda: stack.state("aaa")[0] == "CONFIGURATION")
    launcher.put_away("shop")
    launcher.put_away("aaa")
    assert wait_for("shop runs again", lambda: engine("shop")).status().state in {"STARTING", "RUNNING"}
    with pytest.raises(SluiceError, match="same Delta path"):
        wait_for("aaa is refused again", lambda: engine("aaa"))


@pytest.mark.servers
@pytest.mark.found
def test_admin_a_new_destination_whose_own_tables_clash_is_started(stack: Stack) -> None:
    """Defect 25: if two tables of one new destination had the same path, none of its tables were read."""
    base, lake = stack.captured.database, stack.watch.in_use.config.lake
    stack.captured.run(f"CREATE TABLE {base}.others (n INT PRIMARY KEY)")
    stack.put("shop", f"tables: {{{base}.numbers: {{path: {lake}/{base}/others/inside}}}}")
    stack.look()
    wait_for("shop runs", lambda: stack.state("shop")[0] == "RUNNING")
    stack.captured.insert([1])
    assert wait_for("it stages", lambda: next_batch("shop")).tables == (f"{base}.numbers",)
    find = written_target(stack.watch.in_use.config, "shop")
    for name in ("numbers", "others"):
        with pytest.raises(TableError, match="is inside") as raised:
            find(f"{base}.{name}").refuse_clash(f"{base}.{name}")
        assert (raised.value.for_good, raised.value.state) == (True, "MERGE_FAILED"), (
            "it stops by name, in its first run"
        )
