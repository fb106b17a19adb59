"""Tests transforms from conf/ to the staged files: functions that raise, hang or drop rows, what stops a table, and what follows when a
function changes.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from sluice.batch_manifest.values import Alteration, AlterationKind
from sluice.cdc_engine.binlog.rows.decoder import OPERATION
from sluice.cdc_engine.config import DestinationConfig, TableConfig, load_config
from sluice.cdc_engine.contracts import Batch, RowEventKind, TableChangeKind
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.instance.rows.work import BackfillReading
from sluice.cdc_engine.instance.tables import transform_functions
from sluice.cdc_engine.instance.tables.filter_change import take_up_new_tables
from sluice.cdc_engine.instance.tables.table_snapshots import SourceTables
from sluice.cdc_engine.instance.tables.transforms_in_use import FILE, note_transforms, refuse_other_functions
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.staging import StagingRules, stage
from sluice.cdc_engine.staging.staging import StagingResult
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.conf_check import conf_problems
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.transforms_check import transform_problems, transform_warnings, transforms_sentence
from sluice.equality.table_plan import RefusedError, plan
from tests.binlog.rows.event_bytes import ID, NOTE, ORDERS
from tests.fix_ledgers import MemoryLedger, at
from tests.instance.fix_destination import Captured, running
from tests.instance.test_row_rules_consumer import CASCADE, PARENT
from tests.instance.transforms.fix_modules import UPPER, write
from tests.staging.test_staging import batch, change, changes, rows_block, whole
from tests.waiting import wait_for

pytestmark = pytest.mark.seeds

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "transform.md"
SETTINGS = {"function": "shop_rows:orders", "reads": ["note"], "writes": ["note", "size"]}
RAISES_AT_POISON = """
def orders(rows):
    if "poison" in rows["note"].to_pylist():
        raise ValueError("cannot read poison")
    return pa.record_batch({"note": pc.utf8_upper(rows["note"]), "size": pc.utf8_length(rows["note"])})
"""
HANGS = """
done = threading.Event()
def orders(rows):
    if rows.num_rows:
        done.wait()
    return pa.record_batch({"note": rows["note"], "size": pc.utf8_length(rows["note"])})
"""


def destination(more: dict[str, Any] | None = None, **settings: Any) -> DestinationConfig:
    tables = {"shop.orders": {"transform": {**SETTINGS, **settings}}, **(more or {})}
    return DestinationConfig.model_validate({"name": "shop", "source": {"user": "u"}, "tables": tables})


def staged(folder: Path, config: DestinationConfig, given: Batch, delivery: int = 1) -> StagingResult:
    return stage(given, "shop", delivery, folder, StagingRules(policies=policies_of(config)))


def rows_of(result: StagingResult, name: str = "orders") -> list[tuple[Any, ...]]:
    """Returns (operation, id, note, size) of each staged image of a table."""
    found: list[tuple[Any, ...]] = []
    for segment in changes(result.path):
        if f".{name}." in str(segment.file):
            table = pq.read_table(result.path / segment.file)
            columns = [each for each in (OPERATION, "id", "note", "size") if each in table.column_names]
            found += zip(*(table[each].to_pylist() for each in columns), strict=True)
    return found


POISONED = batch(
    whole(
        rows_block(
            (ORDERS, INSERT, [(1, 1, "a")]),
            (PARENT, INSERT, [(7, 7, "p")]),
            (ORDERS, UPDATE, [(1, 1, "a"), (1, 2, "poison")]),
        )
    )
)


def test_what_is_staged_is_transformed_in_the_order_of_the_transactions(tmp_path: Path) -> None:
    given = batch(
        whole(
            rows_block(
                (ORDERS, INSERT, [(1, 1, "a"), (2, 2, None)]),
                (PARENT, INSERT, [(7, 7, "p")]),
                (ORDERS, UPDATE, [(1, 1, "a"), (1, 1, "bc")]),
                (ORDERS, DELETE, [(2, 2, None)]),
            )
        )
    )
    result = staged(tmp_path, destination(), given)
    assert not result.stopped
    assert rows_of(result) == [(1, 1, "A", 1), (1, 2, None, None), (3, 1, "BC", 2), (4, 2, None, None)]
    assert rows_of(result, "parents") == [(1, 7, "p")], "a table without a transform is as it was"
    (segment, *_) = changes(result.path)
    assert [(column.name, column.type, column.mysql_type) for column in segment.columns] == [
        ("id", "int", "int"),
        ("amount", "int", "int"),
        ("note", "string", "varchar(20)"),
        ("size", "int", ""),
    ]


def test_a_function_that_raises_stops_its_table_and_nothing_is_lost_or_doubled(tmp_path: Path, modules: Path) -> None:
    """The table stops where the batch begins, without any of its rows, so the same rows arrive again. Other tables continue."""
    write(modules, RAISES_AT_POISON)
    result = staged(tmp_path / "1", destination(version="1"), POISONED)
    (stop,) = result.stopped
    assert (stop.name, stop.state, stop.position) == ("shop.orders", TableState.TRANSFORM_FAILED, POISONED.start)
    assert "the transform shop_rows:orders failed: the function raised ValueError at shop_rows.py:7" in stop.reason
    assert "cannot read" not in stop.reason, "the text of an error may have values"
    assert (rows_of(result), rows_of(result, "parents")) == ([], [(1, 7, "p")])
    write(modules, UPPER)
    again = staged(tmp_path / "2", destination(version="1"), POISONED, delivery=2)
    assert not again.stopped
    assert rows_of(again) == [(1, 1, "A", 1), (3, 1, "POISON", 6)]


def test_a_function_that_hangs_stops_its_table_and_is_not_called_again_meanwhile(tmp_path: Path, modules: Path) -> None:
    write(modules, HANGS)
    config = destination(seconds_max=0.2)
    first = staged(tmp_path / "1", config, POISONED)
    module = sys.modules["shop_rows"]
    try:
        (stop,) = first.stopped
        assert (stop.name, stop.state) == ("shop.orders", TableState.TRANSFORM_FAILED)
        assert "the function did not return within 0.2 s (`seconds_max`)" in stop.reason
        assert rows_of(first, "parents") == [(1, 7, "p")]
        (stop,) = staged(tmp_path / "2", config, POISONED, delivery=2).stopped
        assert "an earlier call of the function for this table has not returned yet" in stop.reason
    finally:
        module.done.set()
    (function,) = transform_functions._FUNCTIONS.values()
    for late in function.late.values():
        late.join()
    assert rows_of(staged(tmp_path / "3", config, POISONED, delivery=3)) == [(1, 1, "a", 1), (3, 1, "poison", 6)]


def test_a_function_that_ends_the_thread_is_a_failure_and_no_end_of_the_engine(tmp_path: Path, modules: Path) -> None:
    write(modules, "\ndef orders(rows):\n    raise SystemExit(1)\n")
    (stop,) = staged(tmp_path, destination(), POISONED).stopped
    assert "the function raised SystemExit at shop_rows.py:6" in stop.reason


def test_a_batch_of_which_the_function_drops_every_row_has_no_segment(tmp_path: Path, modules: Path) -> None:
    write(
        modules,
        "\ndef orders(rows):\n    return pa.record_batch({'_sluice_keep': pa.array([False] * rows.num_rows, pa.bool_())})\n",
    )
    result = staged(tmp_path, destination(reads=["id"], writes=[], drops=True), POISONED)
    assert [table.name for table in result.manifest.tables] == ["shop.parents"]


@pytest.mark.parametrize(
    ("alteration", "fills", "why"),
    [
        (Alteration(kind=AlterationKind.WIDEN, column="note", old_type="char(1)", new_type="text"), (), "note"),
        (Alteration(kind=AlterationKind.RENAME, column="NOTE", new_name="text"), (), "NOTE"),
        (Alteration(kind=AlterationKind.RENAME, column="old", new_name="note"), (), "note"),
        (Alteration(kind=AlterationKind.ADD, column="amount"), (("note", "7"),), "note"),
        (Alteration(kind=AlterationKind.ADD, column="amount"), (("amount", "7"),), ""),
    ],
)
def test_a_statement_that_alters_a_column_of_the_function_stops_the_table(
    alteration: Alteration, fills: tuple[tuple[str, str], ...], why: str, tmp_path: Path
) -> None:
    altered = change(TableChangeKind.SCHEMA, 50, schema=ORDERS, alterations=(alteration,), fills=fills)
    result = staged(tmp_path, destination(), batch(altered))
    assert [stop.state for stop in result.stopped] == ([TableState.DDL_UNSUPPORTED] if why else [])
    assert all(f"altered the column {why}, which the transform" in stop.reason for stop in result.stopped)


def test_a_table_that_gets_the_name_of_one_with_another_transform_stops(tmp_path: Path) -> None:
    renamed = change(TableChangeKind.SCHEMA, 50, schema=ORDERS, renamed_from="shop.drafts")
    result = staged(tmp_path, destination(), batch(renamed))
    assert [(stop.name, stop.state) for stop in result.stopped] == [("shop.orders", TableState.ROWS_RULE)]


@pytest.mark.parametrize(("reads", "doubt"), [("amount", True), ("note", False)])
def test_foreign_keys_change_no_column_of_a_function_in_the_lake(
    reads: str, doubt: bool, tmp_path: Path, modules: Path
) -> None:
    write(
        modules,
        "\ndef orders(rows):\n    return pa.record_batch({'size': pa.array([1] * rows.num_rows, pa.int32())})\n",
    )
    parent = dataclasses.replace(PARENT, cascades=(CASCADE,))
    given = batch(whole(rows_block((parent, DELETE, [(1, 1, "a")]))))
    result = staged(tmp_path, destination(reads=[reads], writes=["size"]), given)
    assert [each.unlike for events in result.manifest.cascades for each in events.cascades] == [doubt]


def test_rows_that_a_function_drops_are_no_way_for_foreign_keys(tmp_path: Path) -> None:
    below = dataclasses.replace(
        CASCADE, name="fk2", parent=("shop", "orders"), child=("shop", "lines"), columns=("order_id",)
    )
    parent = dataclasses.replace(PARENT, cascades=(CASCADE, below))
    given = batch(whole(rows_block((parent, DELETE, [(1, 1, "a")]))))
    for drops in (False, True):
        result = staged(tmp_path, destination(drops=drops), given)
        stops = [(stop.name, stop.state) for stop in result.stopped]
        assert stops == ([("shop.lines", TableState.CASCADE_UNSEEN)] if drops else [])


def test_a_corrected_function_is_applied_to_all_rows_of_the_table_that_it_stopped(
    tmp_path: Path, modules: Path
) -> None:
    write(modules, RAISES_AT_POISON)
    meta = MemoryLedger()
    take_up_new_tables(destination(), tmp_path, [ORDERS], meta, at(5))
    (stop,) = staged(tmp_path / "1", destination(), POISONED).stopped
    meta.update(lambda ledger: ledger.stop_table(stop))
    write(modules, UPPER)
    take_up_new_tables(destination(), tmp_path, [ORDERS], meta, at(9))
    (found,) = meta.ledger.stopped_tables
    assert (found.state, found.position) == (TableState.RULES_CHANGED, POISONED.start)


def test_rows_are_not_read_by_a_function_that_the_engine_does_not_have(tmp_path: Path, modules: Path) -> None:
    """A run imports the function itself, so it may have a newer function than the engine."""
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\nlake: {tmp_path}/lake\n")
    text = f"source: {{user: u}}\ntables:\n  shop.orders: {{transform: {json.dumps(SETTINGS)}}}\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(text)
    config = load_config(tmp_path / "conf")
    folder = config.destination_dir("shop")
    shop = config.destinations["shop"]
    note_transforms(policies_of(shop), folder)
    refuse_other_functions(policies_of(shop), folder)
    write_tables(folder, [ORDERS])
    before = SourceTables(config, "shop").table("shop.orders")
    write(modules, UPPER + "\n# another\n")
    with pytest.raises(
        ActRefusedError, match=r"shop\.orders: the module of the table's transform changed.*restart shop"
    ):
        SourceTables(config, "shop").reader(ORDERS, "")
    now = SourceTables(config, "shop").table("shop.orders")
    assert before is not None
    assert now is not None
    assert before.version != now.version, "chunks of both do not fit together"
    note_transforms(policies_of(shop), folder)
    refuse_other_functions(policies_of(shop), folder)
    note_transforms(policies_of(destination({"shop.orders": {}})), folder)
    assert not (folder / FILE).exists()


@pytest.mark.parametrize(
    ("function", "text", "why"),
    [
        ("nowhere:orders", UPPER, "the module nowhere cannot be imported: ModuleNotFoundError"),
        (
            "shop_rows:orders",
            "raise RuntimeError('no license')",
            "the module shop_rows cannot be imported: RuntimeError: no license",
        ),
        ("shop_rows:Orders.rows", UPPER, "the module shop_rows has no function Orders.rows"),
        (
            "upper",
            UPPER,
            "upper is not installed; installed transforms: none (entry points of the group sluice.transforms)",
        ),
        (
            "sys:exit",
            UPPER,
            "sys:exit has no source file, so Sluice cannot notice a change of the function: set `version`",
        ),
    ],
)
def test_check_says_why_a_function_cannot_be_imported(
    function: str, text: str, why: str, tmp_path: Path, modules: Path
) -> None:
    write(modules, text)
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text("")
    settings = json.dumps({**SETTINGS, "function": function})
    conf = tmp_path / "conf" / "destinations" / "shop.yaml"
    conf.write_text(f"source: {{user: u}}\ntables:\n  shop.orders: {{transform: {settings}}}\n")
    (problem,) = conf_problems(tmp_path / "conf")
    assert f"tables.shop.orders.transform: {why}" in problem
    with pytest.raises(ConfigurationError, match=r"tables\.shop\.orders\.transform"):
        policies_of(load_config(tmp_path / "conf").destinations["shop"])


def test_the_page_for_operators_works(tmp_path: Path, modules: Path) -> None:
    """Tests docs/guides/transform.md: its function, its tests and its settings."""
    function, tests = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (modules / "shop_rows.py").write_text(function)
    defined: dict[str, Any] = {}
    exec(tests, defined)  # noqa: S102  it is what the page tells people to run
    for name in [each for each in defined if each.startswith("test_")]:
        defined[name]()
    (conf,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    settings = yaml.safe_load(conf)["tables"]["shop.customers"]["transform"]
    config = DestinationConfig.model_validate(
        {"name": "shop", "source": {"user": "u"}, "tables": {"shop.orders": {"transform": settings}}}
    )
    columns = tuple(dataclasses.replace(NOTE, name=name) for name in ("email", "kind"))
    customers = dataclasses.replace(ORDERS, columns=(ID, *columns))
    given = batch(
        whole(rows_block((customers, INSERT, [(1, "ann@example.org", None), (2, "bob@example.org", "test")])))
    )
    (segment,) = changes(staged(tmp_path, config, given).path)
    (row,) = pq.read_table(tmp_path / staged(tmp_path, config, given).path / segment.file).to_pylist()
    assert (row["id"], row["email"], row["domain"]) == (1, None, "example.org")


def test_a_function_is_named_by_an_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = importlib.metadata.EntryPoint("upper", "shop_rows:orders", transform_functions.GROUP)
    known = importlib.metadata.EntryPoints([entry])
    monkeypatch.setattr(transform_functions, "entry_points", known.select)
    assert rows_of(staged(tmp_path, destination(function="upper"), POISONED))[0] == (1, 1, "A", 1)


def test_check_calls_the_function_of_a_known_table(tmp_path: Path) -> None:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\n")
    conf = tmp_path / "conf" / "destinations" / "shop.yaml"
    conf.write_text(f"source: {{user: u}}\ntables:\n  shop.orders: {{transform: {json.dumps(SETTINGS)}}}\n")
    config = load_config(tmp_path / "conf")
    assert transform_problems(config) == [], "no table is known"
    write_tables(config.destination_dir("shop"), [ORDERS])
    assert (transforms_sentence(config), transform_problems(config)) == (
        "transforms: shop.orders of shop by shop_rows:orders",
        [],
    )
    assert transform_warnings(config) == []
    conf.write_text(conf.read_text() + "canal_server: {port: 11111}\n")
    (warning,) = transform_warnings(load_config(tmp_path / "conf"))
    assert warning.startswith(
        "transforms apply only to the lake, so clients and brokers of shop stop at the first row of shop.orders"
    )
    conf.write_text(conf.read_text().replace('"note", "size"', '"note", "id"'))
    (problem,) = transform_problems(load_config(tmp_path / "conf"))
    assert problem.startswith("shop.orders of shop: the transform shop_rows:orders writes the key column id")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"transform": {**SETTINGS, "function": "a b"}}, "function"),
        ({"transform": {**SETTINGS, "reads": []}}, "reads"),
        ({"transform": {**SETTINGS, "writes": []}}, "the transform has no effect"),
        ({"transform": {**SETTINGS, "writes": ["a", "A"]}}, r"transform\.writes has a column twice"),
        ({"transform": {**SETTINGS, "writes": ["_sluice_x"]}}, "reserved for Sluice"),
        ({"transform": {**SETTINGS, "seconds_max": 0}}, "seconds_max"),
        ({"transform": SETTINGS, "masks": {"Note": "null"}}, "the transform writes Note, which is masked"),
        (
            {"transform": {**SETTINGS, "writes": ["Valid_From"]}, "history": True},
            "which the table's history uses for a column of its own",
        ),
        ({"transform": SETTINGS, "undecodable": "quarantine"}, "transform require undecodable: stop"),
    ],
)
def test_settings_of_a_transform_that_make_no_sense_are_refused(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TableConfig.model_validate(table)


def test_an_equality_check_leaves_written_columns_out_and_refuses_dropped_rows() -> None:
    lake = {"id": "int", "amount": "int", "note": "bigint", "size": "int", "_sluice_order_key": "bigint"}
    found = plan(ORDERS, range(3), destination(), lake)
    assert ([column.name for column in found.columns], found.left_out) == (["id", "amount"], ("note", "size"))
    with pytest.raises(RefusedError, match="the transform shop_rows:orders drops rows"):
        plan(ORDERS, range(3), destination(drops=True), lake)


def read(shop: Captured, folder: Path) -> BackfillReading:
    """Prepares a reading of the last second, as a backfill or a repair does."""
    now_us = time.time_ns() // 1000
    wanted = RequestedInterval(from_us=now_us - 1_000_000, tables=(f"{shop.database}.numbers",))
    return BackfillReading(shop.config.destinations["shop"], shop.directory, wanted, folder, now_us=now_us)


@pytest.mark.servers
def test_an_engine_transforms_rows_of_a_real_source_and_notices_an_edited_function(
    mysql80: DatabaseServer, tmp_path: Path, modules: Path
) -> None:
    """After the file of the function is edited, a backfill refuses to read rows, because the engine still runs the old function. The next
    start of the engine stops the table.
    """
    shop = Captured(tmp_path, mysql80)
    write(modules, UPPER.replace("note", "filler"))
    settings = {**SETTINGS, "reads": ["filler"], "writes": ["filler", "size"]}
    shop.describe(f"tables: {{{shop.database}.numbers: {{transform: {json.dumps(settings)}}}}}", "snapshot: never")
    with running(shop) as engine:
        shop.insert([1, 2], filler_bytes=3)
        shop.run(f"UPDATE {shop.database}.numbers SET filler = 'ab' WHERE n = 2")
        assert shop.take(engine, 3) == [1, 2, 2]
        assert engine.status().stopped_tables == ()
        read(shop, tmp_path / "before")
        write(modules, UPPER.replace("note", "filler") + "\n# edited\n")
        with pytest.raises(
            ActRefusedError, match="the module of the table's transform changed after the engine started"
        ):
            read(shop, tmp_path / "after")
    write(modules, RAISES_AT_POISON.replace("note", "filler"))
    with running(shop) as engine:
        wait_for("the table stops", lambda: bool(engine.status().stopped_tables))
        assert [stop.state for stop in engine.status().stopped_tables] == ["RULES_CHANGED"]
