"""Tests that settings that shape rows are stored with each table, and that a change of one is noticed. Every setting of conf/ is
classified.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import DestinationConfig, TableConfig
from sluice.cdc_engine.config.shards import ShardsConfig
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.instance.tables.filter_change import (
    has_earlier_settings,
    may_resume,
    take_rules,
    take_up_new_tables,
)
from sluice.cdc_engine.instance.tables.row_shape import (
    APPLIED,
    OF_DESTINATION,
    OF_SHARDS,
    OF_TABLE,
    ShapeEffect,
    changed_settings,
    shape_of,
)
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.resume_requests import request, requests
from sluice.cdc_engine.records.files import FileRecordStore
from sluice.cdc_engine.states import TableState
from tests.binlog.rows.event_bytes import NOTE, ORDERS
from tests.fix_ledgers import MemoryLedger, at

NAME = "shop.orders"
# For each setting, its values in conf/ before and after the change.
OF_TABLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "key": ({}, {"key": ["amount"]}),
    "deletes": ({"deletes": "soft"}, {}),
    "zero_dates": ({}, {"zero_dates": "text"}),
    "undecodable": ({"undecodable": "quarantine"}, {}),
    "charsets": ({}, {"charsets": {"note": "latin1"}}),
    "cascades": ({"cascades": "ignore"}, {}),
}
OF_DESTINATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "column_exclude": ({"column_exclude": f"{NAME}:note"}, {}),
    "column_include": ({"column_include": f"{NAME}:amount"}, {}),
    "cascades": ({"cascades": "ignore"}, {"cascades": "stop"}),
    "tables": ({}, {"tables": {NAME: {"deletes": "soft"}}}),
    "shards": (
        {"shards": [{"tables": "shop.orders", "into": "all"}]},
        {"shards": [{"tables": "shop.orders", "into": "all", "options": {"deletes": "soft"}}]},
    ),
}


def destination(**words: Any) -> DestinationConfig:
    return DestinationConfig.model_validate({"name": "shop", "source": {"user": "u"}, **words})


def table(**words: Any) -> DestinationConfig:
    return destination(tables={NAME: words}) if words else destination()


def starts(folder: Path, meta: MemoryLedger, config: DestinationConfig) -> list[StoppedTable]:
    take_up_new_tables(config, folder, [ORDERS], meta, at(5), [NAME])
    return list(meta.ledger.stopped_tables)


@pytest.mark.found
@pytest.mark.parametrize(
    ("model", "known"), [(TableConfig, OF_TABLE), (DestinationConfig, OF_DESTINATION), (ShardsConfig, OF_SHARDS)]
)
def test_every_setting_is_classified_as_shaping_rows_or_not(model: Any, known: dict[str, ShapeEffect]) -> None:
    """Defect 2: a new setting that shapes rows was not stored with its table, so its change was not noticed."""
    assert set(known) == set(model.model_fields), "say in `row_shape` what a change of the setting means for rows"


def test_every_setting_that_shapes_rows_has_an_example() -> None:
    for known, examples in ((OF_TABLE, OF_TABLES), (OF_DESTINATION, OF_DESTINATIONS)):
        assert {name for name, effect in known.items() if effect is ShapeEffect.SHAPES_ROWS} == set(examples)


@pytest.mark.found
@pytest.mark.parametrize("setting", OF_TABLES)
def test_a_changed_setting_of_a_table_stops_it_by_name(tmp_path: Path, setting: str) -> None:
    """Defect 2: if the key, deletes, charsets or zero dates of an existing table changed in conf/, its old rows stayed as they were."""
    meta = MemoryLedger()
    before, after = (table(**words) for words in OF_TABLES[setting])
    assert starts(tmp_path, meta, before) == []
    (stop,) = starts(tmp_path, meta, after)
    assert (stop.name, stop.state) == (NAME, TableState.RULES_CHANGED)
    assert f"({setting})" in stop.reason
    meta.update(lambda ledger: ledger.resume_table("shop", "orders"))
    assert starts(tmp_path, meta, after) == [], "once is enough"


@pytest.mark.found
@pytest.mark.parametrize("setting", OF_DESTINATIONS)
def test_a_changed_setting_of_a_destination_stops_the_tables_that_it_shapes(tmp_path: Path, setting: str) -> None:
    """Defect 2: if `column_exclude` was removed from conf/, old rows still had NULL in the column."""
    meta = MemoryLedger()
    before, after = (destination(**words) for words in OF_DESTINATIONS[setting])
    assert starts(tmp_path, meta, before) == []
    (stop,) = starts(tmp_path, meta, after)
    assert (stop.name, stop.state) == (NAME, TableState.RULES_CHANGED)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (destination(), destination(column_exclude=f"{NAME}:nowhere,shop.other:note")),
        (table(), table(key=["ID"])),
        (table(), table(undecodable="quarantine")),
        (table(zero_dates="error"), table()),
        (table(), table(cascades="ignore")),
        (table(), table(merge="small", deletion_vectors=False, owners=["team:a"], snapshot="never")),
        (table(charsets={"Note": "Latin1"}), table(charsets={"note": "latin1"})),
    ],
)
def test_a_setting_that_leaves_the_rows_as_they_are_stops_nothing(
    tmp_path: Path, before: DestinationConfig, after: DestinationConfig
) -> None:
    meta = MemoryLedger()
    assert starts(tmp_path, meta, before) == []
    assert starts(tmp_path, meta, after) == []
    assert changed_settings(shape_of(after, NAME), shape_of(after, NAME), None) == ()
    assert starts(tmp_path, meta, after) == []


@pytest.mark.found
@pytest.mark.parametrize(("in_conf", "in_source"), [("Note", "note"), ("note", "Note"), ("NOTE", "NOTE")])
def test_a_charset_holds_whatever_the_case_of_the_columns_name(in_conf: str, in_source: str) -> None:
    """Defect 1030: `charsets` had no effect if conf/ spelled a column in another letter case than the source. Nothing reported that. The
    corrected spelling counted as unchanged, so the rows that were already in the lake stayed as they were.
    """
    policy = policies_of(table(charsets={in_conf: "latin1"}))[NAME]
    assert policy.corrected(dataclasses.replace(NOTE, name=in_source)).charset == "latin1"
    with pytest.raises(ValueError, match="charsets has a column twice"):
        table(charsets={"note": "latin1", "NOTE": "utf8mb4"})


@pytest.mark.found
@pytest.mark.parametrize(
    ("fields", "charset", "stops"),
    [
        ({"mysql_type": "enum('Ã¼')", "labels": ("Ã¼",)}, "utf8mb4", True),
        ({"mysql_type": "enum('a')", "labels": ("a",)}, "utf8mb4", False),
        ({"mysql_type": "binary(5)", "charset": "binary"}, "utf8mb4", True),
        ({"mysql_type": "binary(5)", "charset": "binary"}, "binary", False),
        ({"mysql_type": "char(5)"}, "binary", True),
        ({"mysql_type": "varchar(5)"}, "utf8mb4", False),
    ],
)
def test_a_table_to_which_charsets_now_applies_in_another_way_is_re_snapshotted(
    tmp_path: Path, fields: dict[str, Any], charset: str, *, stops: bool
) -> None:
    """Defect 1252: after an update of Sluice, changes of a column with `charsets` had other texts than the rows in the lake. A row with
    such a key was doubled.
    """
    meta, config = MemoryLedger(), table(charsets={"note": charset})
    note = dataclasses.replace(NOTE, **{"charset": "latin1", **fields})
    orders = dataclasses.replace(ORDERS, columns=(*ORDERS.columns[:-1], note))
    take_up_new_tables(config, tmp_path, [orders], meta, at(5), [NAME])
    record = json.loads((tmp_path / "filters.json").read_text())
    del record["shapes"][NAME][APPLIED]
    (tmp_path / "filters.json").write_text(json.dumps(record))
    take_up_new_tables(config, tmp_path, [orders], meta, at(6), [NAME])
    assert [each.state for each in meta.ledger.stopped_tables] == [TableState.RULES_CHANGED] * stops
    assert json.loads((tmp_path / "filters.json").read_text())["shapes"][NAME][APPLIED]


@pytest.mark.found
def test_a_table_that_stopped_for_something_else_is_re_snapshotted_when_it_resumes(tmp_path: Path) -> None:
    """Defect 32: a table that stopped in KEY_NULL resumed under `zero_dates: text`, although the column was still a date in the lake."""
    meta, text = MemoryLedger(), table(zero_dates="text")
    assert starts(tmp_path, meta, table()) == []
    stop = StoppedTable(database="shop", table="orders", state=TableState.KEY_NULL, reason="NULL", position=at(7))
    meta.update(lambda ledger: ledger.stop_table(stop))
    assert starts(tmp_path, meta, text) == [stop]
    request(tmp_path, "shop", "orders")
    assert may_resume(text, tmp_path, policies_of(text), requests(tmp_path), meta) == []
    (found,) = meta.ledger.stopped_tables
    assert (found.state, found.position) == (TableState.RULES_CHANGED, at(7)), "which its rows heal"
    take_rules(text, tmp_path, policies_of(text), [NAME], at(8))
    meta.update(lambda ledger: ledger.resume_table("shop", "orders"))
    assert starts(tmp_path, meta, text) == []


@pytest.mark.found
def test_a_crash_after_the_settings_were_saved_does_not_resume_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1141: a resume of a table whose settings had changed saved the settings before it removed the request. After a crash between
    the two writes, the same request resumed the table under the new settings, and nobody had seen that its older rows lack them.
    """
    meta, soft = MemoryLedger(), table(deletes="soft")
    starts(tmp_path, meta, table())
    stop = StoppedTable(database="shop", table="orders", state=TableState.KEY_NULL, reason="NULL", position=at(7))
    meta.update(lambda ledger: ledger.stop_table(stop))
    starts(tmp_path, meta, soft)
    request(tmp_path, "shop", "orders")
    puts, put = list[str](), FileRecordStore.put

    def crashes(self: FileRecordStore, name: str, text: str, token: int | None = None) -> None:
        put(self, name, text, token)
        puts.append(name)
        raise InterruptedError

    monkeypatch.setattr(FileRecordStore, "put", crashes)
    with pytest.raises(InterruptedError):
        may_resume(soft, tmp_path, {}, requests(tmp_path), meta)
    assert puts == ["filters.json"]
    monkeypatch.undo()
    assert may_resume(soft, tmp_path, {}, requests(tmp_path), meta) == []
    assert [each.state for each in meta.ledger.stopped_tables] == [TableState.RULES_CHANGED]


def test_a_table_whose_setting_was_changed_back_while_it_was_stopped_resumes(tmp_path: Path) -> None:
    meta, text = MemoryLedger(), table(zero_dates="text")
    starts(tmp_path, meta, table())
    stop = StoppedTable(database="shop", table="orders", state=TableState.DDL_HELD, reason="a change", position=at(7))
    meta.update(lambda ledger: ledger.stop_table(stop))
    starts(tmp_path, meta, text)
    request(tmp_path, "shop", "orders")
    assert len(may_resume(table(), tmp_path, {}, requests(tmp_path), meta)) == 1


def test_a_record_without_a_shape_counts_as_written_with_the_current_settings(tmp_path: Path) -> None:
    meta, soft = MemoryLedger(), table(deletes="soft")
    starts(tmp_path, meta, soft)
    record = json.loads((tmp_path / "filters.json").read_text())
    assert record.pop("shapes") == {NAME: {"deletes": "soft"}}
    (tmp_path / "filters.json").write_text(json.dumps(record))
    assert starts(tmp_path, meta, soft) == []
    assert json.loads((tmp_path / "filters.json").read_text())["shapes"] == {NAME: {"deletes": "soft"}}
    assert [stop.state for stop in starts(tmp_path, meta, table())] == [TableState.RULES_CHANGED]


def test_a_crash_between_the_stop_and_the_record_stops_the_table_all_the_same(tmp_path: Path) -> None:
    meta = MemoryLedger()
    starts(tmp_path, meta, table())
    kept = (tmp_path / "filters.json").read_text()
    starts(tmp_path, meta, table(deletes="soft"))
    (tmp_path / "filters.json").write_text(kept)
    assert [stop.state for stop in starts(tmp_path, meta, table(deletes="soft"))] == [TableState.RULES_CHANGED]
    assert json.loads((tmp_path / "filters.json").read_text())["shapes"] == {NAME: {"deletes": "soft"}}


@pytest.mark.found
@pytest.mark.parametrize(
    ("deletes", "is_in_lake", "resumes"),
    [("soft", True, False), ("hard", True, True), ("soft", False, True)],
    ids=["changed", "unchanged", "new"],
)
def test_a_table_that_is_included_again_under_other_settings_is_not_resumed_silently(
    tmp_path: Path, deletes: str, is_in_lake: bool, resumes: bool
) -> None:
    """Defect 1080: while conf/ excluded a table, the settings of its rows in the lake were forgotten. So the table could be resumed under
    other settings, for example masks, although the lake had rows without them.
    """
    meta = MemoryLedger()
    without = destination(exclude="shop.orders", snapshot="never", tables={NAME: {"deletes": deletes}})
    again = destination(snapshot="never", tables={NAME: {"deletes": deletes}})
    if is_in_lake:
        starts(tmp_path, meta, destination(snapshot="never"))
        LakeTables(tmp_path).keep({NAME: ("t", 3)})
    for _ in range(2):
        take_up_new_tables(without, tmp_path, [], meta, at(6), [])
    assert [stop.state for stop in starts(tmp_path, meta, again)] == [TableState.NEWLY_INCLUDED]
    starts(tmp_path, meta, again)
    request(tmp_path, "shop", "orders")
    assert len(may_resume(again, tmp_path, policies_of(again), requests(tmp_path), meta)) == int(resumes)
    assert [stop.state for stop in meta.ledger.stopped_tables] == [
        TableState.NEWLY_INCLUDED if resumes else TableState.RULES_CHANGED
    ]


@pytest.mark.found
def test_a_name_without_a_database_in_conf_does_not_prevent_a_start(tmp_path: Path) -> None:
    """Defect 1085: after a change of conf/, an engine did not start if `tables` had a name without a dot. Such a name was always accepted,
    and names no table.
    """
    meta = MemoryLedger()
    tables = {"orders": {"deletes": "soft"}}
    assert starts(tmp_path, meta, destination(tables=tables)) == []
    assert starts(tmp_path, meta, destination(tables=tables, exclude="shop.other")) == []
    assert json.loads((tmp_path / "filters.json").read_text())["exclude"] == "shop.other"


OF_NEW_TABLES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"column_exclude": f"{NAME}:note"}, {}),
    ({"shards": [{"tables": "shop.orders", "into": "all", "options": {"deletes": "soft"}}]}, {}),
    ({"cascades": "ignore", "tables": {"shop.new": {"cascades": "stop"}}}, {"cascades": "stop"}),
]


@pytest.mark.found
@pytest.mark.parametrize(("before", "after"), OF_NEW_TABLES)
def test_a_table_that_was_created_after_the_start_has_the_settings_of_that_start(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Defect 1029: the settings of a table that was created while the engine ran counted as the default values. So the next start stopped
    the table although conf/ was unchanged, and a change back to the default values was not noticed.
    """
    meta = MemoryLedger()
    take_up_new_tables(destination(**before), tmp_path, [], meta, at(4), [])
    assert starts(tmp_path, meta, destination(**before)) == []
    (tmp_path / "filters.json").unlink()
    take_up_new_tables(destination(**before), tmp_path, [], meta, at(4), [])
    assert [stop.state for stop in starts(tmp_path, meta, destination(**after))] == [TableState.RULES_CHANGED]


@pytest.mark.found
def test_a_table_that_was_created_and_stopped_after_the_start_resumes_under_the_same_settings(tmp_path: Path) -> None:
    """Defect 1029: such a table stopped in RULES_CHANGED when it resumed, and changed settings were not noticed."""
    meta, filtered = MemoryLedger(), destination(column_exclude=f"{NAME}:note")
    take_up_new_tables(filtered, tmp_path, [], meta, at(4), [])
    stop = StoppedTable(database="shop", table="orders", state=TableState.DDL_HELD, reason="a change", position=at(7))
    meta.update(lambda ledger: ledger.stop_table(stop))
    for config, tables in ((filtered, []), (destination(), [ORDERS])):
        request(tmp_path, "shop", "orders")
        assert len(may_resume(filtered, tmp_path, {}, requests(tmp_path), meta)) == 1
        take_up_new_tables(config, tmp_path, tables, meta, at(9), [NAME])
    assert may_resume(destination(), tmp_path, {}, requests(tmp_path), meta) == []


@pytest.mark.found
def test_a_filter_of_the_primary_key_counts_if_conf_declares_another_key(tmp_path: Path) -> None:
    """Defect 1038: if conf/ declared another key, a change of `column_exclude` about a column of the primary key was not noticed. Existing
    rows then had NULL in the column.
    """
    meta, keyed = MemoryLedger(), {"tables": {NAME: {"key": ["amount"]}}}
    assert starts(tmp_path, meta, destination(column_exclude=f"{NAME}:id", **keyed)) == []
    (stop,) = starts(tmp_path, meta, destination(**keyed))
    assert (stop.state, "(column_include, column_exclude)" in stop.reason) == (TableState.RULES_CHANGED, True)


@pytest.mark.found
def test_a_filter_of_the_declared_key_changes_nothing(tmp_path: Path) -> None:
    """Defect 1038: a filter of a column of the declared key, which is always captured, stopped the table."""
    meta, keyed = MemoryLedger(), {"tables": {NAME: {"key": ["amount"]}}}
    assert starts(tmp_path, meta, destination(column_exclude=f"{NAME}:amount", **keyed)) == []
    assert starts(tmp_path, meta, destination(**keyed)) == []


@pytest.mark.found
def test_a_primary_key_whose_name_has_a_comma_is_one_column() -> None:
    """Defect 98: the name of the key column was split at the comma. A filter of another column with a part of this name was not noticed."""
    columns = tuple(dataclasses.replace(NOTE, name=name) for name in ("a,b", "a"))
    version = dataclasses.replace(ORDERS, columns=columns, key=("a,b",))
    before, after = shape_of(destination(column_exclude=f"{NAME}:a"), NAME), shape_of(destination(), NAME)
    assert changed_settings(before, after, version) == ("column_include, column_exclude",)


@pytest.mark.found
@pytest.mark.parametrize("settings", [{"zero_dates": "text"}, {"masks": {"note": "null"}}], ids=["shape", "rules"])
def test_a_table_that_was_dropped_before_its_settings_changed_is_not_stopped_when_it_is_there_again(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Defect 1094: the settings of a dropped table stayed in the record. So the table stopped at the first start after it was created
    again, and was re-snapshotted, although a table that is created again begins without the earlier rows.
    """
    meta, changed = MemoryLedger(), table(**settings)
    assert starts(tmp_path, meta, table()) == []
    take_up_new_tables(changed, tmp_path, [], meta, at(6), [NAME], dropped=[NAME])
    assert starts(tmp_path, meta, changed) == []


@pytest.mark.parametrize("why", ["soft deletes", "excluded", "stopped"])
def test_the_settings_of_a_dropped_table_stay_as_long_as_the_lake_keeps_its_rows(tmp_path: Path, why: str) -> None:
    meta, settings = MemoryLedger(), {"zero_dates": "text"} | ({"deletes": "soft"} if why == "soft deletes" else {})
    exclude = NAME if why == "excluded" else ""
    starts(tmp_path, meta, table(deletes="soft") if why == "soft deletes" else table())
    stop = StoppedTable(database="shop", table="orders", state=TableState.DDL_HELD, reason="a change", position=at(6))
    if why == "stopped":
        meta.update(lambda ledger: ledger.stop_table(stop))
    before = json.loads((tmp_path / "filters.json").read_text())["shapes"].get(NAME, {})
    config = destination(exclude=exclude, tables={NAME: settings})
    take_up_new_tables(config, tmp_path, [], meta, at(6), [NAME], dropped=[NAME])
    assert json.loads((tmp_path / "filters.json").read_text())["shapes"].get(NAME, {}) == before


def earlier(folder: Path, config: DestinationConfig) -> list[tuple[int, bool]]:
    """Returns which versions of the Delta table have rows of earlier settings, as (end, whether a snapshot was published)."""
    ends = [(end, is_published) for end in (4, 5, 6) for is_published in (False, True)]
    return [
        (end, is_published)
        for end, is_published in ends
        if has_earlier_settings(config, folder, NAME, at(end), is_published=is_published)
    ]


OLD_AT_5 = [(4, False), (4, True), (5, False)]


@pytest.mark.found
@pytest.mark.parametrize("settings", [{"zero_dates": "text"}, {"masks": {"note": "null"}}], ids=["shape", "rules"])
def test_versions_of_a_delta_table_before_a_change_of_settings_are_known(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Defect 1095: `backfill --into` took a version with rows of earlier settings, and applied changes under the present settings."""
    meta, changed = MemoryLedger(), table(**settings)
    assert earlier(tmp_path, table()) == [], "nothing is recorded yet"
    starts(tmp_path, meta, table())
    assert earlier(tmp_path, table()) == []
    assert len(earlier(tmp_path, changed)) == 6, "the engine has not started with these settings"
    starts(tmp_path, meta, changed)
    assert earlier(tmp_path, changed) == OLD_AT_5
    take_up_new_tables(table(**settings, owners=["team:a"]), tmp_path, [ORDERS], meta, at(9), [NAME, "shop.new"])
    assert earlier(tmp_path, changed) == OLD_AT_5, "a later start keeps the position"
    take_up_new_tables(destination(exclude="shop.x", tables={NAME: settings}), tmp_path, [ORDERS], meta, at(9))
    assert earlier(tmp_path, changed) == OLD_AT_5
    take_up_new_tables(destination(exclude="shop.y"), tmp_path, [], MemoryLedger(), at(9), [])
    assert "changed_at" not in json.loads((tmp_path / "filters.json").read_text()), "nothing knows the table any more"


@pytest.mark.found
@pytest.mark.parametrize("by", ["resume", "snapshot", "inclusion"])
def test_versions_before_a_change_of_a_stopped_or_excluded_table_are_known(tmp_path: Path, by: str) -> None:
    """Defect 1095: the same for a table that did not follow the stream when its settings changed."""
    meta, changed = MemoryLedger(), table(zero_dates="text")
    meta.update(lambda ledger: ledger.set_cursor(at(5)))
    starts(tmp_path, meta, table())
    stop = StoppedTable(database="shop", table="orders", state=TableState.DDL_HELD, reason="a change", position=at(3))
    if by == "inclusion":
        LakeTables(tmp_path).keep({NAME: ("t", 3)})
        take_up_new_tables(destination(exclude=NAME), tmp_path, [], meta, at(4), [])
        starts(tmp_path, meta, table(zero_dates="text", snapshot="initial"))
    else:
        meta.update(lambda ledger: ledger.stop_table(stop))
        take_up_new_tables(changed, tmp_path, [], meta, at(4), [NAME])
    if by == "resume":
        request(tmp_path, "shop", "orders")
        assert may_resume(changed, tmp_path, policies_of(changed), requests(tmp_path), meta) == []
    elif by == "snapshot":
        take_rules(changed, tmp_path, policies_of(changed), [NAME], at(5))
    assert earlier(tmp_path, changed) == OLD_AT_5
