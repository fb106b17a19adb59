"""Tests rules for rows from conf/ to the staged files: refused rules, rules that change between two starts, foreign keys, renamed tables,
and the equality check.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.entries.elements import FIRST_STATE
from sluice.cdc_engine.binlog.rows.decoder import OPERATION
from sluice.cdc_engine.config import DestinationConfig, TableConfig, load_config
from sluice.cdc_engine.contracts import RowEventKind, StoppedTable, TableChangeKind
from sluice.cdc_engine.errors import ConfigurationError, ConsumerStoppedError
from sluice.cdc_engine.instance.consumers.consumer_stream import Selection
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.readable import Readable
from sluice.cdc_engine.instance.consumers.served import serving_of
from sluice.cdc_engine.instance.tables.filter_change import may_resume, take_rules, take_up_new_tables
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.resume_requests import request, requests
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.sink.event_sink import CapturedTables
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.staging import StagingRules, stage
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.store.window.positions import WindowPiece
from sluice.console.conf_check import conf_problems
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.table_plan import RefusedError, plan
from tests.binlog.rows.event_bytes import ORDERS
from tests.fix_blocks import Source
from tests.fix_ledgers import MemoryLedger, at
from tests.instance.fix_destination import Captured, running
from tests.staging.test_staging import batch, change, changes, rows_block, whole
from tests.waiting import wait_for

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
SALT = "pepper"
PARENT = dataclasses.replace(ORDERS, table="parents")
CASCADE = Cascade(
    name="fk",
    parent=("shop", "parents"),
    child=("shop", "orders"),
    columns=("amount",),
    referenced=("id",),
    on_delete="CASCADE",
)


@pytest.fixture(autouse=True)
def salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_MASK_SALT", SALT)


def destination(**tables: Any) -> DestinationConfig:
    return DestinationConfig.model_validate(
        {"name": "shop", "source": {"user": "u"}, "tables": {f"shop.{name}": table for name, table in tables.items()}}
    )


@pytest.mark.parametrize(
    ("words", "kind", "chars"),
    [
        ("hash", "hash", 0),
        ("null", "null", 0),
        (None, "null", 0),
        ("truncate:4", "truncate", 4),
        ({"kind": None}, "null", 0),
    ],
)
def test_a_mask_for_consumers_in_short(words: Any, kind: str, chars: int) -> None:
    mask = TableConfig.model_validate({"masks": {"a": words}}).masks["a"]
    assert (mask.kind, mask.chars) == (kind, chars)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"masks": {"a": "md5"}}, "'md5' is not a mask: use hash, null or truncate:4"),
        ({"masks": {"a": "truncate"}}, "needs `chars` of at least 1"),
        ({"masks": {"a": "hash", "A": "null"}}, "masks has a column twice"),
        ({"masks": {"a": "hash"}, "undecodable": "quarantine"}, "quarantine, Sluice would store the values"),
    ],
)
def test_an_invalid_mask_is_refused(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TableConfig.model_validate(table)


def test_check_names_a_condition_that_cannot_be_read_and_a_salt_that_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_MASK_SALT")
    (tmp_path / "destinations").mkdir()
    (tmp_path / "sluice.yaml").write_text("")
    (tmp_path / "destinations" / "shop.yaml").write_text(
        "source: {user: u}\ntables:\n  shop.a: {rows: 'a ='}\n  shop.b: {masks: {c: hash}}\n"
    )
    problems = conf_problems(tmp_path)
    assert len(problems) == 2
    assert "tables.shop.a.rows: the condition 'a =' cannot be read: the end at character 4" in problems[0]
    assert "SLUICE_MASK_SALT is not set" in problems[1]
    config = load_config(tmp_path).destinations["shop"]
    with pytest.raises(ConfigurationError):
        serving_of(config, lambda: pytest.fail("nobody asks"))


def test_what_is_staged_for_the_lake_is_filtered_and_masked(tmp_path: Path) -> None:
    config = destination(orders={"rows": "amount > 5", "masks": {"id": "hash", "note": "truncate:1"}})
    part = whole(
        rows_block(
            (ORDERS, INSERT, [(1, 1, "abc"), (2, 9, "abc")]),
            (ORDERS, UPDATE, [(1, 1, "abc"), (1, 9, "abc"), (2, 9, "abc"), (2, 1, "abc")]),
        )
    )
    staged = stage(batch(part), "shop", 1, tmp_path, StagingRules(policies=policies_of(config)))
    (segment,) = changes(staged.path)
    one, two = (hashlib.sha256(f"{SALT}{key}".encode()).hexdigest() for key in (1, 2))
    table = pq.read_table(staged.path / segment.file)
    assert list(zip(table[OPERATION].to_pylist(), table["id"].to_pylist(), table["note"].to_pylist(), strict=True)) == [
        (1, two, "a"),
        (1, one, "a"),
        (4, two, "a"),
    ]
    assert (segment.inserts, segment.updates, segment.deletes) == (2, 0, 1)
    assert {column.name: column.type for column in segment.columns} == {
        "id": "string",
        "amount": "int",
        "note": "string",
    }
    written = b"".join(path.read_bytes() for path in staged.path.iterdir())
    assert b"abc" not in written


def test_a_batch_of_which_no_row_is_left_has_no_segment(tmp_path: Path) -> None:
    config = destination(orders={"rows": "amount > 5"})
    staged = stage(
        batch(whole(rows_block((ORDERS, INSERT, [(1, 1, "a")])))),
        "shop",
        1,
        tmp_path,
        StagingRules(policies=policies_of(config)),
    )
    assert staged.manifest.tables == ()


def test_an_added_column_that_is_masked_does_not_show_its_default(tmp_path: Path) -> None:
    config = destination(orders={"masks": {"note": "hash"}})
    added = change(TableChangeKind.SCHEMA, 50, schema=ORDERS, fills=(("note", "secret"), ("amount", "7")))
    staged = stage(batch(added), "shop", 1, tmp_path, StagingRules(policies=policies_of(config)))
    (segment,) = staged.manifest.tables[0].segments
    assert dict(segment.fills) == {"note": hashlib.sha256(f"{SALT}secret".encode()).hexdigest(), "amount": "7"}  # type: ignore[union-attr]


def test_a_table_that_gets_the_name_of_one_with_other_rules_stops(tmp_path: Path) -> None:
    config = destination(orders={"masks": {"note": "hash"}})
    renamed = change(TableChangeKind.SCHEMA, 50, schema=ORDERS, renamed_from="shop.drafts")
    staged = stage(batch(renamed), "shop", 1, tmp_path, StagingRules(policies=policies_of(config)))
    assert [(stop.name, stop.state) for stop in staged.stopped] == [("shop.orders", TableState.ROWS_RULE)]


@pytest.mark.parametrize("way", ["masks", "columns"])
@pytest.mark.parametrize("origin", ["orders", "other"])
def test_a_consumer_is_not_shown_rows_under_a_name_with_other_rules(origin: str, way: str) -> None:
    """The table stops in the lake at the rename. Otherwise a client and a broker would continue with unmasked values."""
    policies = policies_of(destination(orders={"masks": {"note": "hash"}})) if way == "masks" else {}
    kept = ColumnFilter(exclude="shop.orders:note").kept if way == "columns" else None
    renamed_from = f"shop.{origin}"
    (renamed,) = change(TableChangeKind.SCHEMA, 50, PARENT, schema=PARENT, renamed_from=renamed_from).block.changes
    piece = WindowPiece(Source().block([], changes=(renamed,)), 0, 0, 0, 0)

    def chosen(tables: str) -> object:
        captured = CapturedTables([TableFilter(tables)])
        forms = Forms(policies=policies, kept=kept)
        return Selection(tables=captured, wants=lambda _: False, shown=Readable(forms)).chosen([piece], FIRST_STATE)[0]

    assert chosen("shop.orders") == ()
    if origin == "other":
        assert chosen("") == ()
        return
    with pytest.raises(ConsumerStoppedError, match=r"shop.parents was renamed from shop.orders.*masks"):
        chosen("")


def test_values_that_a_mask_hides_are_not_written_for_foreign_keys_either(tmp_path: Path) -> None:
    parent = dataclasses.replace(PARENT, cascades=(CASCADE,))
    config = destination(parents={"masks": {"id": "hash"}})
    part = whole(rows_block((parent, DELETE, [(123456, 1, "a")])))
    staged = stage(batch(part), "shop", 1, tmp_path, StagingRules(policies=policies_of(config)))
    assert [(stop.name, stop.state) for stop in staged.stopped] == [("shop.orders", TableState.CASCADE_UNSEEN)]
    assert (123456).to_bytes(4, "little") not in b"".join(path.read_bytes() for path in staged.path.iterdir())


def test_rows_that_a_condition_left_out_are_no_way_for_foreign_keys(tmp_path: Path) -> None:
    """The lake lacks rows of the table in between. So Sluice does not know which rows of the table below are deleted with them."""
    below = dataclasses.replace(
        CASCADE, name="fk2", parent=("shop", "orders"), child=("shop", "lines"), columns=("order_id",)
    )
    parent = dataclasses.replace(PARENT, cascades=(CASCADE, below))
    part = whole(rows_block((parent, DELETE, [(1, 1, "a")])))
    stops = {}
    for rows in ("", "id > 5"):
        config = destination(orders={"rows": rows})
        staged = stage(batch(part), "shop", 1, tmp_path, StagingRules(policies=policies_of(config)))
        stops[rows] = [(stop.name, stop.state) for stop in staged.stopped]
    assert stops == {"": [], "id > 5": [("shop.lines", TableState.CASCADE_UNSEEN)]}


def test_rules_that_change_between_two_starts_stop_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = MemoryLedger()

    def start(**tables: Any) -> list[tuple[str, TableState]]:
        take_up_new_tables(destination(**tables), tmp_path, [ORDERS, PARENT], meta, at(5))
        found = [(stop.name, stop.state) for stop in meta.ledger.stopped_tables]
        for stop in meta.ledger.stopped_tables:
            resumed = stop
            meta.update(lambda ledger: ledger.resume_table(resumed.database, resumed.table))  # noqa: B023  at once
        return found

    changed = [("shop.orders", TableState.RULES_CHANGED)]
    masks = {"note": "hash"}
    assert start() == []
    assert start(orders={"masks": masks}) == changed
    assert start(orders={"masks": masks}) == []
    assert start(orders={"masks": masks}, parents={"key": ["id"]}) == [], "it is the primary key"
    assert SALT not in (tmp_path / "filters.json").read_text()
    monkeypatch.setenv("SLUICE_MASK_SALT", "another")
    assert start(orders={"masks": masks}) == changed
    assert start(orders={"masks": masks, "rows": "id > 1"}) == changed
    assert start() == changed
    assert start() == []
    log, history = {"current_state": False, "change_log": True}, {"current_state": False, "history": True}
    assert [start(orders=words) for words in (log, log, history, {})] == [changed, [], changed, changed]


def test_a_table_whose_rules_did_not_fit_is_re_snapshotted_with_rules_that_fit(tmp_path: Path) -> None:
    meta = MemoryLedger()
    take_up_new_tables(destination(orders={"rows": "nowhere = 1"}), tmp_path, [ORDERS], meta, at(5))
    take_up_new_tables(destination(orders={"rows": "nowhere = 1"}), tmp_path, [ORDERS], meta, at(5))
    assert not meta.ledger.stopped_tables
    stop = StoppedTable(database="shop", table="orders", state=TableState.ROWS_RULE, reason="no column", position=at(7))
    meta.update(lambda ledger: ledger.stop_table(stop))
    take_up_new_tables(destination(orders={"rows": "id = 1"}), tmp_path, [ORDERS], meta, at(9))
    (found,) = list(meta.ledger.stopped_tables)
    assert (found.state, found.position) == (TableState.RULES_CHANGED, at(7))


def stopped_for_another_reason(meta: MemoryLedger) -> StoppedTable:
    stop = StoppedTable(database="shop", table="orders", state=TableState.DDL_HELD, reason="a change", position=at(7))
    meta.update(lambda ledger: ledger.stop_table(stop))
    return stop


def test_rules_that_change_while_a_table_is_stopped_are_looked_at_at_the_start_after_it_continues(
    tmp_path: Path,
) -> None:
    meta, masked = MemoryLedger(), destination(orders={"masks": {"note": "hash"}}, new={"rows": "id = 1"})
    take_up_new_tables(destination(), tmp_path, [ORDERS], meta, at(5), ["shop.orders"])
    stop = stopped_for_another_reason(meta)
    for tables in ([ORDERS], []):  # The schema history leaves out tables that a statement stopped.
        take_up_new_tables(masked, tmp_path, tables, meta, at(9), ["shop.orders"])
        assert meta.ledger.stopped_tables == (stop,)
    assert list(json.loads((tmp_path / "filters.json").read_text())["rules"]) == ["shop.new"], "nothing knows that one"
    meta.update(lambda ledger: ledger.resume_table("shop", "orders"))
    take_up_new_tables(masked, tmp_path, [ORDERS], meta, at(9), ["shop.orders"])
    assert [each.state for each in meta.ledger.stopped_tables] == [TableState.RULES_CHANGED]


def test_a_table_whose_rules_changed_while_it_was_stopped_does_not_resume_under_them(tmp_path: Path) -> None:
    meta, masked = MemoryLedger(), destination(orders={"masks": {"note": "hash"}})

    def resumes(config: DestinationConfig) -> bool:
        request(tmp_path, "shop", "orders")
        may = bool(may_resume(config, tmp_path, policies_of(config), requests(tmp_path), meta))
        assert bool(requests(tmp_path)) is may, "what is refused is not asked again and again"
        return may

    take_up_new_tables(destination(), tmp_path, [ORDERS], meta, at(5), ["shop.orders"])
    stopped_for_another_reason(meta)
    take_up_new_tables(masked, tmp_path, [], meta, at(9), ["shop.orders"])
    assert resumes(destination()), "conf/ says what was said before"
    assert not resumes(masked)
    (found,) = meta.ledger.stopped_tables
    assert (found.state, found.position) == (TableState.RULES_CHANGED, at(7))
    assert resumes(masked), "an operator was told"


def test_a_table_whose_rules_changed_says_where_old_values_stay(tmp_path: Path) -> None:
    meta, logged = MemoryLedger(), {"change_log": True, "history": True}
    take_up_new_tables(destination(orders=logged, parents={}), tmp_path, [ORDERS, PARENT], meta, at(5))
    masks = {"masks": {"note": "hash"}}
    take_up_new_tables(destination(orders=logged | masks, parents=masks), tmp_path, [ORDERS, PARENT], meta, at(9))
    orders, parents = (stop.reason for stop in meta.ledger.stopped_tables)
    assert "shop/orders__log and shop/orders__history" in orders
    assert "move these tables away" in orders
    assert "__" not in parents


def test_rules_of_a_table_that_is_spelled_otherwise_end_the_start(tmp_path: Path) -> None:
    config = DestinationConfig.model_validate(
        {"name": "shop", "source": {"user": "u"}, "tables": {"shop.Orders": {"masks": {"note": "hash"}}}}
    )
    with pytest.raises(ConfigurationError, match=r"write shop\.orders"):
        take_up_new_tables(config, tmp_path, [ORDERS], MemoryLedger(), at(5))
    take_up_new_tables(config, tmp_path, [dataclasses.replace(ORDERS, table="Orders"), ORDERS], MemoryLedger(), at(5))


def test_a_table_that_was_re_snapshotted_with_the_current_rules_has_them(tmp_path: Path) -> None:
    meta, masked = MemoryLedger(), destination(orders={"masks": {"note": "hash"}})
    take_up_new_tables(destination(), tmp_path, [ORDERS], meta, at(5), ["shop.orders"])
    stopped_for_another_reason(meta)
    take_up_new_tables(masked, tmp_path, [], meta, at(9), ["shop.orders"])
    take_rules(masked, tmp_path, policies_of(masked), ["shop.orders"], at(9))
    meta.update(lambda ledger: ledger.resume_table("shop", "orders"))
    take_up_new_tables(masked, tmp_path, [ORDERS], meta, at(9), ["shop.orders"])
    assert not meta.ledger.stopped_tables


def test_equality_leaves_masked_columns_out_and_refuses_what_it_cannot_compare() -> None:
    lake = {"id": "int", "amount": "int", "note": "string", "_sluice_order_key": "bigint"}

    def planned(table: dict[str, Any]) -> Any:
        return plan(ORDERS, range(3), destination(orders=table), lake)

    found = planned({"masks": {"NOTE": "hash"}})
    assert ([column.name for column in found.columns], found.left_out) == (["id", "amount"], ("note",))
    for table, why in (
        ({"rows": "id = 1"}, "only the rows where id = 1"),
        ({"masks": {"id": "hash"}}, "key column id is masked"),
    ):
        with pytest.raises(RefusedError, match=why):
            planned(table)


@pytest.mark.servers
def test_rules_of_conf_hold_on_a_real_source_and_stop_the_table_when_they_change(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    shop = Captured(tmp_path, mysql80)
    rule = f"tables: {{{shop.database}.numbers: {{rows: n >= 10, masks: {{filler: truncate:2}}}}}}"
    shop.describe(rule, "snapshot: never")
    with running(shop) as engine:
        shop.insert([1, 10], filler_bytes=9)
        for before, after in ((10, 11), (1, 12), (11, 2)):
            shop.run(f"UPDATE {shop.database}.numbers SET n = {after} WHERE n = {before}")
        assert shop.take(engine, 5) == [10, 10, 11, 12, 11], "one within, one that enters, one that leaves"
        assert engine.status().stopped_tables == ()
    shop.describe("snapshot: never")
    with running(shop) as engine:
        wait_for("the table stops", lambda: bool(engine.status().stopped_tables))
        (stopped,) = engine.status().stopped_tables
        assert (stopped.table, stopped.state) == ("numbers", "RULES_CHANGED")
