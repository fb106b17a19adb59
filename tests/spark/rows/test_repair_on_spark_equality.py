"""Tests a repair while an engine runs: rows that differ become equal to the source, and the stream continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.rows.source_rows import RowsRead, SourceRows
from sluice.console.lake.history import captured_table, history_of
from sluice.console.lake.life import row_life
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.checks.equality import evaluation_of
from sluice.orchestration.run.rows.repair import Repaired, plan_repair, run_repair
from sluice.orchestration.run.rows.request import RepairRequest
from sluice.orchestration.run.spark_merge import spark_merge
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline, by_hand, killed_at

pytestmark = [pytest.mark.servers, pytest.mark.spark]


class Broken(Pipeline):
    """A pipeline whose lake another program has damaged, and its repair."""

    def break_lake(self) -> None:
        """Damages the rows 0 to 7: one is removed, two have another value under their own order keys, one exists twice, and two rows are
        added that never existed.
        """
        path = f"delta.`{self.path}`"
        self.by_another_hand(f"DELETE FROM {path} WHERE n = 1")
        self.by_another_hand(f"UPDATE {path} SET filler = 'wrong' WHERE n IN (2, 6)")
        ours = "_sluice_order_key, _sluice_commit_time, _sluice_operation"
        for number, like in ((3, 3), (70, 4), (71, 4)):
            others = f"SELECT {number}, 'never', {ours} FROM {path} WHERE n = {like}"
            self.by_another_hand(f"INSERT INTO {path} (n, filler, {ours}) {others}")

    def repair(self, *tables: str) -> Repaired:
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        request = RepairRequest(destination="shop", tables=tables, settle_seconds=120.0)
        plan = plan_repair(self.config, request)
        return run_repair(by_hand(ports, self.config), request, plan)

    @contextmanager
    def streaming(self, engine: Engine) -> Iterator[None]:
        """Merges each batch in a thread until the block ends."""
        ending = threading.Event()

        def merge_on() -> None:
            while not ending.is_set():
                self.merge_next(engine)

        with ThreadPoolExecutor(1) as thread:
            merging = thread.submit(merge_on)
            try:
                yield
            finally:
                ending.set()
                merging.result()


def around_reading(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Calls `before` right before rows are read from the source, and `after` right after that."""
    read = SourceRows.read

    def changed(self: SourceRows, *given: Any) -> RowsRead:
        before()
        found = read(self, *given)
        after()
        return found

    monkeypatch.setattr(SourceRows, "read", changed)


@pytest.mark.parametrize("kind", ["mysql80", "mariadb114"])
def test_rows_that_differ_are_read_again_while_the_stream_continues_repair_equality(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    spark_server: SparkConnectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = Broken(tmp_path, request.getfixturevalue(kind), spark_server, history=True)
    numbers = pipeline.name
    with running(pipeline.captured) as engine:
        pipeline.captured.insert(range(8))
        pipeline.change(f"UPDATE {numbers} SET filler = 'new' WHERE n > 3")
        pipeline.merge(engine)
        pipeline.break_lake()
        around_reading(
            monkeypatch,
            lambda: pipeline.change(
                f"DELETE FROM {numbers} WHERE n = 6", f"UPDATE {numbers} SET filler = 'newest' WHERE n = 2"
            ),
            lambda: pipeline.change(
                f"DELETE FROM {numbers} WHERE n = 1", f"INSERT INTO {numbers} VALUES (70, 'at last')"
            ),
        )
        with pipeline.streaming(engine):
            done = pipeline.repair()
            monkeypatch.undo()
            assert pipeline.rows() == {0: "", 2: "newest", 3: "", 4: "new", 5: "new", 7: "new", 70: "at last"}
            assert done.all_right, done
            (planned,) = done.plan
            assert planned.keys == {"missing": 1, "surplus": 2, "doubled": 1, "value": 2}
            assert pipeline.open_versions() == pipeline.rows(), "the history is held against what was repaired"
            assert not pipeline.repair().plan, "nothing differs any more"
        pipeline.change(f"INSERT INTO {numbers} VALUES (1, 'again')", f"DELETE FROM {numbers} WHERE n = 3")
        pipeline.merge(engine)
        assert pipeline.rows() == {0: "", 1: "again", 2: "newest", 4: "new", 5: "new", 7: "new", 70: "at last"}
        assert pipeline.open_versions() == pipeline.rows()
        assert not engine.status().stopped_tables
    table = captured_table(pipeline.config, numbers)
    found = [each for each in history_of(table) if each.kind == "repair"]
    assert [each.run for each in found] == ["by hand"] * 2, "what was doubled went before"
    reported = [(each.happened, each.commit.kind) for each in row_life(table, "3") if each.commit]
    assert reported[:2] == [("delete", "changes"), ("insert", "repair")]
    assert [each.commit.kind for each in row_life(table, "0") if each.commit] == ["changes"], "it is not of the repair"
    evaluation = evaluation_of(pipeline.config, "shop", done.after[0])
    assert evaluation.passed
    assert evaluation.metadata["repaired_in_version"].value == found[0].version
    assert evaluation.metadata["repaired_by_run"].value == "by hand"


def test_the_command_repairs_keys_of_any_kind_and_names_what_it_cannot_repair_equality(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables have a key of text whose collation treats different bytes as equal, a key of several columns, rows that are only marked as
    deleted, or no key.
    """
    pipeline = Broken(tmp_path, mysql80, spark_server, deletes="soft")
    monkeypatch.setenv("SLUICE_CONF", str(pipeline.captured.conf))
    database = pipeline.captured.database
    words, pairs, loose = (f"{database}.{name}" for name in ("words", "pairs", "loose"))
    with running(pipeline.captured) as engine:
        pipeline.change(
            f"CREATE TABLE {words} (w VARCHAR(9) COLLATE utf8mb4_unicode_ci PRIMARY KEY, n INT)",
            f"CREATE TABLE {pairs} (f FLOAT, d DATETIME(6), u BIGINT UNSIGNED, n INT, PRIMARY KEY (f, d, u))",
            f"CREATE TABLE {loose} (n INT)",
            f"INSERT INTO {words} VALUES ('A', 1), ('é', 2), ('', 3), ('b', 4)",
            f"INSERT INTO {pairs} VALUES (0.1, '2026-01-02 03:04:05.000006', 18446744073709551615, 1), (-1.5, '1999-01-01', 0, 2)",
            f"INSERT INTO {loose} VALUES (1), (2)",
        )
        pipeline.captured.insert(range(4))
        pipeline.merge(engine)
        paths = {name: pipeline.config.table_path("shop", *name.split(".")) for name in (words, pairs, loose)}
        pipeline.by_another_hand(f"UPDATE delta.`{paths[words]}` SET w = 'a' WHERE w = 'A'")
        pipeline.by_another_hand(f"UPDATE delta.`{paths[words]}` SET n = -2 WHERE w IN ('é', '')")
        pipeline.by_another_hand(f"UPDATE delta.`{paths[pairs]}` SET n = -n")
        pipeline.by_another_hand(f"DELETE FROM delta.`{paths[loose]}` WHERE n = 2")
        pipeline.by_another_hand(
            f"UPDATE delta.`{pipeline.path}` SET filler = 'wrong', _sluice_deleted = true WHERE n = 1"
        )
        pipeline.by_another_hand(f"UPDATE delta.`{pipeline.path}` SET n = 77 WHERE n = 2")
        reported = requested("--plan", code=1)
        plan = {each["table"]: (each["keys"], each["refused"]) for each in reported["plan"]}
        assert plan[words][0] == {"missing": 1, "surplus": 1, "doubled": 0, "value": 2}
        assert plan[pairs][0]["value"] == 2
        assert "no key" in plan[loose][1]
        assert reported["tables"] == []
        made = requested("--yes", code=1)
        assert list(made["refused"]) == [loose]
        assert [(each["table"], each["verdict"]) for each in made["after"]] == [
            (pipeline.name, "equal"),
            (pairs, "equal"),
            (words, "equal"),
        ]
        assert pipeline.rows() == dict.fromkeys(range(4), "")
        assert pipeline.marked() == {77: ""}, "it keeps its values"
        assert {each["table"] for each in requested("--plan", code=1)["plan"]} == {loose}


def requested(*words: str, code: int = 0) -> Any:
    """Returns the command's JSON."""
    answer = CliRunner().invoke(app, ["repair", "shop", "--json", "--settle-seconds", "120", *words])
    assert answer.exit_code == code, (answer.exception, answer.output)
    return json.loads(answer.stdout)


def test_a_repair_that_is_killed_anywhere_is_right_when_it_is_done_again_repair_equality(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    pipeline = Broken(tmp_path, mysql80, spark_server)
    gates, other = tmp_path / "gates", f"{pipeline.captured.database}.others"
    gates.mkdir()
    environment = {**os.environ, "SLUICE_CONF": str(pipeline.captured.conf), failpoints.VARIABLE: str(gates)}
    with running(pipeline.captured) as engine:
        pipeline.change(f"CREATE TABLE {other} (n INT PRIMARY KEY, filler TEXT)", f"INSERT INTO {other} VALUES (1, '')")
        pipeline.captured.insert(range(3))
        pipeline.merge(engine)
        others = pipeline.config.table_path("shop", *other.split("."))
        command = [sys.executable, "-m", "sluice.console.main", "repair", "shop", "--yes"]
        for path in (pipeline.path, others):
            pipeline.by_another_hand(f"UPDATE delta.`{path}` SET filler = 'wrong' WHERE n = 1")
        wrong = 2
        for point in (failpoints.BEFORE_ROWS, failpoints.BETWEEN_ROWS, failpoints.AFTER_ROWS):
            (gates / point).touch()
            # Each command is the next attempt at the repair that the previous kill interrupted.
            killed_at(gates / point, command, environment)
            wrong -= point != failpoints.BEFORE_ROWS
            found = [pipeline.rows()[1], pipeline.rows(others)[1]]
            assert found.count("wrong") == wrong, (point, found)
            pipeline.change(
                f"INSERT INTO {other} VALUES ({10 + wrong}, '{point}') ON DUPLICATE KEY UPDATE filler = '{point}'"
            )
            pipeline.merge(engine)
        again = subprocess.run(command, env=environment, capture_output=True, timeout=180, check=False)
        assert again.returncode == 0, again.stderr.decode()
        assert pipeline.rows() == dict.fromkeys(range(3), "")
        expected = {1: "", 12: failpoints.BEFORE_ROWS, 11: failpoints.BETWEEN_ROWS, 10: failpoints.AFTER_ROWS}
        assert pipeline.rows(others) == expected
        left = [each.name for each in (pipeline.captured.directory / "backfills").iterdir()]
        assert len(left) == 2, f"the lock, and what the last one that was killed had read: {left}"
        assert not engine.status().stopped_tables
