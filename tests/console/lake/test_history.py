"""Tests the arguments that `sluice history` and `sluice why` accept (times, positions, batches) and the versions of a
row, without a lake.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from typer.testing import CliRunner

from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake import history, life
from sluice.console.lake.history import HistoryTable
from sluice.console.main import app
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, ORDER_KEY
from sluice.spark_jobs.tables.commit_record import CommittedInterval, batches, read_commit

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SECOND_US = 1_000_000


def position_record(file: int, offset: int, upto: int) -> dict[str, Any]:
    return {"epoch": 1, "file": f"b.{file:06}", "offset": offset, "gtid_set": f"{UUID}:1-{upto}"}


def interval(number: int, **fields: Any) -> CommittedInterval:
    """Returns batch `number`. Each batch has five seconds, offsets 100·n to 100·(n + 1), and GTIDs up to 10·(n + 1)."""
    made: dict[str, Any] = {
        "version_before": number,
        "version": number + 1,
        "operation": "MERGE",
        "committed_at_us": number,
        "table": "shop.t",
        "epoch": 1,
        "delivery": number,
        "start": position_record(1, 100 * number, 10 * number),
        "end": position_record(1, 100 * (number + 1), 10 * (number + 1)),
        "first_commit_time_us": number * 5 * SECOND_US,
        "last_commit_time_us": (number * 5 + 4) * SECOND_US,
        "kind": "changes",
    }
    return CommittedInterval(**{**made, **fields})


NEWEST_FIRST = [interval(number) for number in (4, 3, 2, 1)]


@pytest.mark.parametrize(
    ("word", "deliveries"),
    [
        ("3", [2]),
        ("9", []),
        ("b.000001:300", [2]),
        ("b.000001:301", [3]),
        ("b.000001:301@1", [3]),
        ("b.000001:301@2", []),
        (f"{UUID}:25", [2]),
        (f"{UUID}:99", []),
        ("1970-01-01 00:00:12", [2]),
        ("1970-01-01T01:00:12+01:00", [2]),
        ("1970-01-01 00:00:01", []),
        ("2030-01-01", [4]),
    ],
)
def test_history_a_text_selects_a_batch(word: str, deliveries: list[int]) -> None:
    assert [each.delivery for each in history.at(NEWEST_FIRST, word)] == deliveries


@pytest.mark.found
def test_history_a_gtid_of_the_other_kind_of_server_selects_only_batches_of_that_kind() -> None:
    """Defect 1236: `sluice history --at` ended with a traceback (ValueError) if the table had batches of MySQL and the GTID was one of
    MariaDB, or the reverse, for example after a migration to the other server.
    """
    moved = interval(5, start={"gtid_set": ""}, end={"gtid_set": "0-1-42"})
    both = [moved, *NEWEST_FIRST]
    assert [each.delivery for each in history.at(both, "0-1-42")] == [5]
    assert [each.delivery for each in history.at(both, f"{UUID}:25")] == [2]
    assert history.at(NEWEST_FIRST, "0-1-42") == []
    for mistyped in (f"{UUID}:0", f"3{UUID.replace('-', '', 1)}:5"):
        with pytest.raises(ConfigurationError, match="is not a version, FILE:OFFSET, GTID"):
            history.at(both, mistyped)


def test_history_any_other_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a version, FILE:OFFSET, GTID or time"):
        history.at(NEWEST_FIRST, "yesterday")


def test_history_commits_of_one_hand_out_are_one_interval_and_anothers_stand_alone() -> None:
    def commit(version: int, delivery: int | None, **fields: Any) -> dict[str, Any]:
        record = {
            "sluice": 1,
            "table": "shop.t",
            "ledger": "x",
            "epoch": 1,
            "delivery": delivery,
            "inserts": 1,
            **fields,
        }
        metadata = json.dumps(record) if delivery else "not JSON"
        return {
            "version": version,
            "operation": "MERGE" if delivery else "OPTIMIZE",
            "timestamp": 5,
            "userMetadata": metadata,
        }

    commits = [commit(3, 7, kind="changes"), commit(2, None), commit(1, 7, kind="truncate"), commit(0, 6)]
    found = batches(read_commit(each) for each in commits)
    assert [(each.version_before, each.version, each.inserts, each.kind, each.ours) for each in found] == [
        (-1, 0, 1, "", True),
        (1, 2, 0, "", False),
        (0, 3, 2, "truncate, changes", True),
    ]


class Rows:
    """Simulates the lake for one row. `rows` has the order key and the value of the row at each table version, or None if the row does not
    exist. Versions below `first` were removed.
    """

    def __init__(self, rows: dict[int, tuple[int, str] | None], first: int = 0) -> None:
        self.rows, self.first = rows, first

    def row(self, version: int) -> dict[str, Any] | None:
        if version < self.first:
            raise life.GoneError(f"version {version} is gone")
        found = self.rows.get(version)
        return None if found is None else {"v": found[1], ORDER_KEY: found[0], COMMIT_TIME: found[0], DELETED: None}


def commits(*keys: int) -> list[CommittedInterval]:
    return [
        interval(version - 1, first_order_key=key, last_order_key=key, deletes=1, version=version)
        for version, key in reversed(list(enumerate(keys)))
    ]


def test_history_of_a_row_that_was_deleted_and_came_again() -> None:
    rows = Rows({0: (5, "a"), 1: (5, "a"), 2: None, 3: None, 4: (30, "b")})
    found = list(life.life(rows, commits(5, 11, 20, 25, 30)))
    assert [(each.happened, each.values["v"], each.commit and each.commit.version) for each in found] == [
        ("insert", "b", 4),
        ("delete", "a", 2),
        ("insert", "a", 0),
    ]


@pytest.mark.found
def test_history_of_a_row_that_a_snapshot_read_has_no_commit_time() -> None:
    """Defect 28: `why` showed the time at which a snapshot read a row as the row's commit time."""
    reported = dataclasses.replace(commits(5)[0], snapshot="1f", last_commit_time_us=5)
    (step,) = life.life(Rows({0: (5, "a")}), [reported])
    assert (step.happened, step.committed_at, step.to_json()["committed_at"]) == ("read by a snapshot", None, "")


def test_history_of_a_row_ends_where_the_log_or_its_files_do() -> None:
    rest = [each for each in commits(5, 11, 20) if each.version > 0]
    found = list(life.life(Rows({1: (5, "a"), 2: (5, "a")}), rest))
    assert [(each.happened, each.commit) for each in found] == [("the oldest version that the log has", None)]
    steps: list[life.LifeStep] = []
    with pytest.raises(life.GoneError):
        steps.extend(life.life(Rows({2: (20, "b")}, first=2), commits(5, 11, 20)))


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        (("id",), "5", {"id": "5"}),
        (("id",), "id=5", {"id": "5"}),
        (("id", "name"), '7,"a, b"', {"id": "7", "name": "a, b"}),
        (("id", "name"), "name=a, ID=7", {"id": "7", "name": "a"}),
        (("name",), "a, b", {"name": "a, b"}),
        (("a", "b"), "1,x", {"a": "1", "b": "x"}),
        (("a", "b"), "a=1, b=x", {"a": "1", "b": "x"}),
    ],
)
def test_history_a_key_is_read_in_its_order(key: tuple[str, ...], text: str, wanted: dict[str, str]) -> None:
    assert life.parse_key(HistoryTable("shop", "shop.t", "/nowhere", key, {}), text) == wanted


def test_history_an_invalid_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give 2 values"):
        life.parse_key(HistoryTable("shop", "shop.t", "/nowhere", ("a", "b"), {}), "1")
    with pytest.raises(ConfigurationError, match="has no key"):
        life.parse_key(HistoryTable("shop", "shop.t", "/nowhere", (), {}), "1")


def test_history_the_commands_name_a_table_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "conf"
    (conf / "destinations").mkdir(parents=True)
    (conf / "sluice.yaml").write_text(
        yaml.safe_dump({"data_dir": str(tmp_path / "data"), "lake": str(tmp_path / "lake")})
    )
    (conf / "destinations/shop.yaml").write_text(yaml.safe_dump({"source": {"user": "x"}}))
    monkeypatch.setenv("SLUICE_CONF", str(conf))
    runner = CliRunner()
    done = runner.invoke(app, ["history", "shop.orders"])
    assert "no destination captures the table 'shop.orders'" in str(done.exception)
    columns = (Column(name="id", type_code=8, nullable=False, mysql_type="bigint"),)
    version = TableVersion(database="shop", table="orders", key=("id",), columns=columns)
    write_tables(tmp_path / "data/engine/shop", [version])
    done = runner.invoke(app, ["why", "shop.orders", "1"])
    assert "shop.orders has no Delta table at" in str(done.exception)


@pytest.mark.found
def test_history_an_unknown_key_is_reported_and_one_of_several_columns_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 28: `why` did not accept keys of several columns, and printed an empty table for a key that no row has had."""
    lake = tmp_path / "lake" / "shop" / "orders"
    rows = pa.table({"a": [1, 2], "b": ["x", "y,z"], ORDER_KEY: [5, 6], DELETED: [None, None]})
    write_deltalake(str(lake), rows.set_column(3, DELETED, pa.array([False, False])))
    table = HistoryTable("shop", "shop.orders", str(lake), ("a", "b"), {})
    monkeypatch.setattr(history, "captured_table", lambda *_: table)
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text("{}")
    for key in ('2,"y,z"', "a=1,b=x"):
        answer = CliRunner().invoke(app, ["why", "shop.orders", key])
        assert answer.exit_code == 0, answer.output
    for key in ("1,y", "3,x"):
        answer = CliRunner().invoke(app, ["why", "shop.orders", key])
        assert answer.exit_code == 1
        assert f"shop.orders has no row with the key {key}" in answer.output
        assert "happened" not in answer.output, "no empty table"
