"""Tests conditions of row filters: their results equal those of the same terms in Python, and invalid conditions are refused with a
sentence.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.row_rules.condition import Condition, ConditionRefusedError
from sluice.cdc_engine.binlog.row_rules.expression import columns_of, parse
from sluice.cdc_engine.errors import ConfigurationError

ROWS: dict[str, Any] = {
    "country": pa.array(["DE", "de", None, "it's"]),
    "amount": pa.array([100, 101, None, -5], pa.int32()),
    "price": pa.array(
        [decimal.Decimal("1.50"), None, decimal.Decimal("2.00"), decimal.Decimal("0.01")], pa.decimal128(10, 2)
    ),
    "big": pa.array([decimal.Decimal(2**64 - 1), None, decimal.Decimal(1), decimal.Decimal(0)], pa.decimal128(20, 0)),
    "ratio": pa.array([0.5, None, 1.0, 2.0]),
    "day": pa.array([dt.date(2026, 1, 1), None, dt.date(2025, 12, 31), dt.date(1970, 1, 1)]),
    "at": pa.array([1767268800000000, None, 1735689600000000, 0], pa.timestamp("us", "UTC")),
    "raw": pa.array([b"a", None, b"", b"c"]),
    "active": pa.array([True, None, False, True]),
    "exact": pa.array([decimal.Decimal(6), None, decimal.Decimal("5.5"), decimal.Decimal(-5)], pa.decimal128(38, 20)),
}


def met(text: str) -> list[int]:
    condition = Condition(parse(text), {name: array.type for name, array in ROWS.items()})
    return [row for row, kept in enumerate(condition.met(ROWS).tolist()) if kept]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("country = 'DE'", [0]),
        ("COUNTRY <> 'DE'", [1, 3]),
        ("country ILIKE 'de'", [0, 1]),
        ("country LIKE 'D%' OR country IS NULL", [0, 2]),
        ("country = 'it''s'", [3]),
        ("NOT country = 'DE'", [1, 3]),
        ("country IN ('DE', 'it''s')", [0, 3]),
        ("country NOT IN ('DE')", [1, 3]),
        ("amount BETWEEN 100 AND 101", [0, 1]),
        ("amount > 100.5", [1]),
        ("amount = TRUE OR amount < -4", [3]),
        ("amount IS NOT NULL AND (country = 'de' OR country = 'DE')", [0, 1]),
        ("country = 'DE' OR country = 'de' AND amount = 100", [0]),
        ("price >= 1.5", [0, 2]),
        ("price > 1.499", [0, 2]),
        ("big = 18446744073709551615", [0]),
        ("active = TRUE", [0, 3]),
        ("active = 0", [2]),
        ("NOT active = 1", [2]),
        ("active IN (0, 1)", [0, 2, 3]),
        ("active < 1", [2]),
        ("exact > 5", [0, 2]),
        ("exact = -5 OR exact = 5.5", [2, 3]),
        ("exact IN (6, 7)", [0]),
        ("`ratio` <= .5", [0]),
        ("\"day\" >= '2026-01-01'", [0]),
        ("at > '2025-06-01 10:00:00'", [0]),
        ("at > '2026-01-01T12:00:00+02:00'", [0]),
        ("raw IS NULL", [1]),
    ],
)
def test_a_condition_of_a_consumer_means_what_sql_says(text: str, rows: list[int]) -> None:
    assert met(text) == rows


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the end at character 1, where the name of a column"),
        ("country", "the end at character 8, where =,"),
        ("country = NULL", r"'NULL' at character 11, .*IS NULL"),
        ("country = 'DE' country = 'x'", "'country' at character 16, where AND, OR or the end"),
        ("country = 'DE", r'"\'" at character 11 is not a known token'),
        ("(country = 'DE'", "the end at character 16, where \\)"),
        ("country = DE", "'DE' at character 11, where a text"),
        ("amount + 1 = 2", r"'\+' at character 8 is not a known token|'\+"),
        ("country LIKE 5", "where a pattern in quotes"),
        ("NOT " * 60 + "a = 1", "more than 50 nested levels"),
    ],
)
def test_a_condition_that_cannot_be_read_says_where(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nowhere = 1", "no column nowhere"),
        ("country = 5", "5 cannot be compared with column country"),
        ("amount = '5'", "'5' cannot be compared with column amount"),
        ("day = 'soon'", "'soon' cannot be compared with column day"),
        ("raw = 'a'", "cannot be compared with column raw"),
        ("amount LIKE '5%'", "LIKE compares text"),
    ],
)
def test_a_condition_that_does_not_fit_the_table_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConditionRefusedError, match=why):
        met(text)


def test_columns_of_a_condition_have_no_case() -> None:
    assert columns_of(parse("A = 1 OR NOT (`b c` IN (1, 2) AND a IS NULL)")) == {"a", "b c"}


VALUES = st.one_of(st.none(), st.integers(-3, 3))
SIGNS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
TERMS = st.recursive(
    st.tuples(st.sampled_from(("a", "b")), st.sampled_from(sorted(SIGNS)), st.integers(-3, 3)),
    lambda inner: st.one_of(st.tuples(st.just("NOT"), inner), st.tuples(inner, st.sampled_from(("AND", "OR")), inner)),
    max_leaves=6,
)


def written(term: Any) -> str:
    if term[0] == "NOT":
        return f"NOT ({written(term[1])})"
    if term[1] in {"AND", "OR"}:
        return f"({written(term[0])}) {term[1]} ({written(term[2])})"
    return f"{term[0]} {term[1]} {term[2]}"


def truth(term: Any, row: dict[str, int | None]) -> bool | None:
    """Evaluates a term with three-valued logic, as SQL does."""
    if term[0] == "NOT":
        found = truth(term[1], row)
        return None if found is None else not found
    if term[1] in {"AND", "OR"}:
        sides = {truth(term[0], row), truth(term[2], row)}
        decides = term[1] == "OR"
        return decides if decides in sides else None if None in sides else not decides
    value = row[term[0]]
    return None if value is None else SIGNS[term[1]](value, term[2])


@given(TERMS, st.lists(st.tuples(VALUES, VALUES), max_size=5))
def test_any_condition_is_true_where_a_reading_row_by_row_says_so(term: Any, rows: list[tuple[Any, Any]]) -> None:
    columns = {name: pa.array([row[index] for row in rows], pa.int64()) for index, name in enumerate("ab")}
    condition = Condition(parse(written(term)), dict.fromkeys("ab", pa.int64()))
    expected = [truth(term, dict(zip("ab", row, strict=True))) is True for row in rows]
    assert condition.met({name: columns[name] for name in condition.columns}).tolist() == expected
