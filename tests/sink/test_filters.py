"""Tests table and column filters, with examples of every form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.sink.table_filter import TableFilter, compile_patterns, split_patterns


@pytest.mark.parametrize(
    ("include", "name", "kept"),
    [
        (r"s1\..*,s2\..*", "s12.t1", False),
        (r"s1\..*,s2\..*", "S1.S2", True),
        (r"s1\..*,s2\..*", ".", True),
        (r"test\.order_\d{1,2}", "test.order_42", True),
        (r"test\.order_\d{1,2}", "test.order_123", False),
        (r"test..*", "test1.x", True),
        (r"test\..*", "test1.x", False),
        (r"test\..*", "TEST.x", True),
        ("db.t1", "db.t1", True),
        ("DB.T1", "db.t1", True),
        (r"db\.a", "db.ab", False),
        (r"db\.b", "adb.b", False),
        (r"a\.x|b\.y", "a.xx", False),
        (r"db\.t.x", "db.t\nx", True),
        (r"db\.[a,b]", "db.a", True),
        (r"db\.(a,b|c)", "db.a,b", True),
        (r"db\.a\,b", "db.a,b", True),
        (r" db\.a", "db.a", False),
        ("", "any.thing", True),
    ],
)
def test_include(include: str, name: str, *, kept: bool) -> None:
    database, _, table = name.partition(".")
    assert TableFilter(include).keeps(database, table) is kept


@pytest.mark.parametrize(
    ("name", "kept"),
    [("mysql.slave_info", False), ("MYSQL.SLAVE_X", False), ("mysql.user", True), ("shop.orders", True)],
)
def test_exclude_takes_away_from_include(name: str, *, kept: bool) -> None:
    database, _, table = name.partition(".")
    assert TableFilter(r".*\..*", r"mysql\.slave_.*").keeps(database, table) is kept


def test_patterns_match_anywhere_in_the_list_of_the_reference() -> None:
    assert [bool(pattern.fullmatch("fooooot")) for pattern in compile_patterns("foooo,f.*t")] == [False, True]


@pytest.mark.found
@pytest.mark.parametrize(
    ("include", "name"),
    [
        (r"(?i)shop\..*,stock\..*", "shop.orders"),
        (r"(?P<year>shop_\d+)\..*,(?P<year>stock_\d+)\..*", "stock_7.items"),
        (r"(eu|us)\.\1_customers,(eu|us)\.\1_t", "us.us_t"),
    ],
)
def test_flags_and_groups_of_a_pattern_apply_to_this_pattern_only(include: str, name: str) -> None:
    """Defect 1160: an engine ended with a traceback at `(?i)` in `include`, and a backreference in a second pattern matched nothing."""
    assert TableFilter(include).keeps(*name.split("."))


def test_no_name_and_no_pattern_fall_to_the_default() -> None:
    assert TableFilter("a", "b").keeps("", "")
    assert TableFilter("", "").keeps("a", "b")


def test_splitting_keeps_brackets_and_escapes_together() -> None:
    assert split_patterns(r"a{1,2},[b,c],(d,e),f\,g,,h") == ["a{1,2}", "[b,c]", "(d,e)", r"f\,g", "h"]
    assert split_patterns(r"a\(,b") == [r"a\(", "b"]


def test_a_pattern_that_is_no_expression_is_named() -> None:
    with pytest.raises(ConfigurationError, match=re.escape("the table pattern 'b[' is not a regular expression")):
        TableFilter("a,b[")


NAMES = st.text("abc_1", min_size=1, max_size=6)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=5), NAMES, NAMES)
def test_a_list_of_escaped_names_keeps_exactly_those(names: list[tuple[str, str]], database: str, table: str) -> None:
    include = ",".join(rf"{a}\.{b}" for a, b in names)
    assert TableFilter(include).keeps(database, table) == ((database, table) in names)


ORDERS = TableVersion(
    database="test1",
    table="t",
    columns=tuple(Column(name=name, type_code=3) for name in ("id", "Name", "note")),
    key=("id",),
)


@pytest.mark.parametrize(
    ("include", "exclude", "kept"),
    [
        ("test1.t:id/name", "", [0, 1]),
        ("TEST1.T:NOTE", "", [0, 2]),  # The key column stays.
        ("test1.t:name", "test1.t:name", [0, 1]),
        ("", "test1.t:name/NOTE", [0]),
        ("", "test1.t:id", [0, 1, 2]),
        ("", "test1.other:note", [0, 1, 2]),
        ("test1.t:", "", [0, 1, 2]),
        ("test1.t", "", [0, 1, 2]),
        ("test1.t:id:name", "", [0, 1, 2]),
        (".*:id", "", [0, 1, 2]),
        ("test1.t:note,test1.t:name", "", [0, 1]),
    ],
)
def test_columns(include: str, exclude: str, kept: list[int]) -> None:
    indices = ColumnFilter(include, exclude).kept(ORDERS)
    assert indices.tolist() == kept
    assert indices.dtype == "int32"


def test_items_without_effect_are_listed() -> None:
    assert ColumnFilter("test1.t:,a.b:c", "x").ignored == ["test1.t:", "x"]
