"""Tests `sluice schema` on the files of a destination whose engine does not run, and what `check` prints about policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.contracts import StoppedTable, TableVersion
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.meta.resume_requests import requests
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.policy import Item, PendingChange
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.check import policy_sentence
from sluice.console.main import app
from tests.fix_ledgers import FileLedger

RUNNER = CliRunner()
POSITION = Position(epoch=1, file="mysql-bin.000001", offset=4)
HELD = PendingChange(
    destination="shop",
    database="shop",
    table="orders",
    order_key=POSITION.order_key + 9,
    position="mysql-bin.000001:13@1",
    statement="ALTER TABLE orders RENAME COLUMN a TO b",
    items=(Item(kind="rename", what="rename a to b"),),
    choices=("apply", "new_column"),
)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the directory of a destination with three tables: one in DDL_HELD, one that stopped for another reason, and one that
    continues.
    """
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\n")
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(
        "source: {user: root}\nschema_changes: {rename: new_column, convert: stop}\n"
        "tables: {shop.log: {schema_changes: {convert: apply}}, shop.views: {key: [id]}, shop.calm: {deletes: soft}}\n"
    )
    directory = tmp_path / "data" / "engine" / "shop"
    directory.mkdir(parents=True)
    write_tables(directory, [TableVersion(database="shop", table="calm", columns=())])
    stops = {"orders": ("DDL_HELD", HELD.reason), "audit": ("SCHEMA_MISMATCH", "it differs")}
    for table, (state, reason) in stops.items():
        stop = StoppedTable(database="shop", table=table, state=TableState(state), reason=reason, position=POSITION)
        FileLedger(directory).update(lambda ledger, stop=stop: ledger.stop_table(stop))  # type: ignore[misc]
    ReviewFiles(directory).note(HELD)
    return directory


def test_ddl_a_pending_change_is_shown_with_its_plans(directory: Path) -> None:
    assert directory.exists()
    answer = RUNNER.invoke(app, ["schema", "held"])
    assert answer.exit_code == 0
    for words in ("shop: shop.orders", HELD.statement, "new_column", "sluice schema approve shop shop.orders"):
        assert words in " ".join(answer.stdout.split())
    (shown,) = json.loads(RUNNER.invoke(app, ["schema", "held", "shop", "--json"]).stdout)
    assert (shown["table"], shown["position"], shown["choices"]) == (
        "shop.orders",
        HELD.position,
        ["apply", "new_column"],
    )
    assert [item["change"] for item in shown["items"]] == ["rename a to b"]
    assert set(shown["items"][0]["plans"]) == {"apply", "new_column"}


def test_ddl_tables_are_shown_with_their_states(directory: Path) -> None:
    assert directory.exists()
    tables = json.loads(RUNNER.invoke(app, ["schema", "show", "shop", "--json"]).stdout)
    assert {table["table"]: table["state"] for table in tables} == {
        "shop.audit": "SCHEMA_MISMATCH",
        "shop.calm": "FLOWING",
        "shop.orders": "DDL_HELD",
    }
    assert RUNNER.invoke(app, ["schema", "show", "shop"]).exit_code == 0


def test_ddl_an_approval_is_stored_and_requests_that_the_engine_continues(directory: Path) -> None:
    (pending,) = json.loads(RUNNER.invoke(app, ["schema", "held", "--json"]).stdout)
    seen = ["--position", pending["position"]]
    answer = RUNNER.invoke(app, ["schema", "approve", "shop", "shop.orders", "--plan", "new_column", *seen])
    assert answer.exit_code == 0, answer.output
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == "new_column"
    assert [(each.database, each.table) for each in requests(directory)] == [("shop", "orders")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("approve", "shop", "shop.orders", "--plan", "keep"), "choose one of apply, new_column"),
        (
            ("approve", "shop", "shop.orders", "--position", "binlog.000001:4@1"),
            "another statement of shop.orders now waits for approval",
        ),
        (("resume", "shop", "shop.orders", "--position", "binlog.000001:4@1"), "binlog.000001:4@1"),
        (("approve", "shop", "shop.audit"), "sluice schema resume shop shop.audit"),
        (("approve", "shop", "shop.calm"), "has not stopped"),
        (("resume", "shop", "shop.calm"), "has not stopped"),
    ],
)
def test_ddl_what_cannot_be_decided_changes_nothing(directory: Path, arguments: tuple[str, ...], words: str) -> None:
    answer = RUNNER.invoke(app, ["schema", *arguments])
    assert isinstance(answer.exception, ActRefusedError)
    assert words in str(answer.exception)
    assert requests(directory) == ()
    assert ReviewFiles(directory).approved("shop", "orders", HELD.order_key) == ""


def test_ddl_a_table_that_stopped_for_any_reason_is_resumed(directory: Path) -> None:
    assert RUNNER.invoke(app, ["schema", "resume", "shop", "shop.audit"]).exit_code == 0
    assert [each.table for each in requests(directory)] == ["audit"]


def test_ddl_a_tables_policies_override_those_of_its_destination(directory: Path) -> None:
    assert directory.exists()
    shop = load_config().destinations["shop"]
    policies = [shop.schema_policy("shop", table) for table in ("log", "views", "other")]
    assert [(each["rename"], each["convert"], each["key"]) for each in policies] == [
        ("new_column", "apply", "hold"),
        ("new_column", "stop", "apply"),
        ("new_column", "stop", "hold"),
    ]
    sentence = policy_sentence(shop)
    assert "left to an operator: convert, key, drop_partition; shop.log: made in the lake" in sentence
    assert "shop.calm" not in sentence
