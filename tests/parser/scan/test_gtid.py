"""Tests GTID sets. Their operations give the same results as operations on Python sets. Their text and their encoding have MySQL's form."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysqlreplication.gtid import GtidSet as LibraryGtidSet

from sluice.cdc_engine.gtid import GtidSet, MariadbPosition, common_executed, executed_after, same_executed

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
SOURCES = (A, B, f"{A}:night")

members = st.sets(st.tuples(st.sampled_from(SOURCES), st.integers(1, 30)))
untagged = st.sets(st.tuples(st.sampled_from((A, B)), st.integers(1, 30)))


def of(transactions: set[tuple[str, int]]) -> GtidSet:
    result = GtidSet()
    for source, number in transactions:
        result = result.add(source, number, number)
    return result


def transactions_of(gtid_set: GtidSet) -> set[tuple[str, int]]:
    return {
        (source, n) for source, runs in gtid_set.runs.items() for first, last in runs for n in range(first, last + 1)
    }


@settings(deadline=None)
@given(members)
def test_text_and_set_say_the_same(transactions: set[tuple[str, int]]) -> None:
    assert transactions_of(GtidSet.parse(str(of(transactions)))) == transactions


@settings(deadline=None)
@given(members, members)
def test_union_difference_and_containment_are_those_of_sets(
    left: set[tuple[str, int]], right: set[tuple[str, int]]
) -> None:
    assert transactions_of(of(left).union(of(right))) == left | right
    assert transactions_of(of(left).subtract(of(right))) == left - right
    assert of(left).contains(of(right)) == (right <= left)
    assert transactions_of(of(left).common(of(right))) == left & right


@settings(deadline=None)
@given(members, st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 30)), max_size=40))
def test_a_block_of_transactions_is_added_as_one_by_one(
    start: set[tuple[str, int]], block: list[tuple[int, int]]
) -> None:
    source = np.array([index for index, _ in block], np.int32)
    number = np.array([number for _, number in block], np.int64)
    added = {(SOURCES[index], number) for index, number in block if index >= 0}
    assert GtidSet.parse(executed_after(str(of(start)), SOURCES, source, number)) == of(start | added)


@settings(deadline=None)
@given(untagged)
def test_the_encoding_is_that_of_the_library(transactions: set[tuple[str, int]]) -> None:
    gtid_set = of(transactions)
    assert gtid_set.encoded() == LibraryGtidSet(str(gtid_set)).encoded()


@settings(deadline=None)
@given(members)
def test_a_set_is_what_its_encoding_says(transactions: set[tuple[str, int]]) -> None:
    assert GtidSet.decode(of(transactions).encoded()) == of(transactions)


def test_the_text_is_read_as_the_server_prints_it() -> None:
    text = f"{B.upper()}:1-5:7 ,\n{A}:9:night:1-3:5"
    assert str(GtidSet.parse(text)) == f"{A}:9:night:1-3:5,{B}:1-5:7"


@pytest.mark.parametrize(
    "text", ["x", A, f"{A}:", f"{A}:0", f"{A}:5-3", f"{A}:1-", f"{A}:-1", f"{A}:99999999999999999999"]
)
def test_what_is_not_a_gtid_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GTID set"):
        GtidSet.parse(text)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_garbage_is_not_an_encoded_set(garbage: bytes) -> None:
    try:
        decoded = GtidSet.decode(garbage)
    except ValueError:
        return
    assert len(decoded.runs) <= len(garbage) // 24


def test_a_set_with_tags_has_the_form_of_mysql_8_3() -> None:
    """In MySQL's encoding of a set with tags, the count is between two marks. Before each tag is a byte with twice the tag's length."""
    encoded = GtidSet.parse(f"{A}:7:night:1-3").encoded()
    server = bytes.fromhex(A.replace("-", ""))
    plain = server + b"\0" + struct.pack("<QQQ", 1, 7, 8)
    tagged = server + b"\x0anight" + struct.pack("<QQQ", 1, 1, 4)
    assert encoded == b"\x01\x02\0\0\0\0\0\x01" + plain + tagged


@pytest.mark.parametrize("missing", range(1, 24 + 6))
def test_a_truncated_set_with_tags_is_refused(missing: int) -> None:
    encoded = GtidSet.parse(f"{A}:night:1-3").encoded()
    with pytest.raises(ValueError, match="not an encoded GTID set"):
        GtidSet.decode(encoded[:-missing])


def test_mariadb_keeps_the_last_of_each_domain_in_stream_order() -> None:
    source, number = np.array([0, 1, 2, 0, -1], np.int32), np.array([5, 6, 9, 7, 0], np.int64)
    assert executed_after("0-1-4,7-1-1", ["0-1", "0-2", "3-1"], source, number) == "0-1-7,3-1-9,7-1-1"
    assert executed_after("", ["0-1", "0-2"], source[:2], number[:2]) == "0-2-6"


def test_mariadb_contains_by_sequence_number() -> None:
    ahead, behind = MariadbPosition.parse("0-1-9, 1-1-3"), MariadbPosition.parse("0-2-9")
    assert ahead.contains(behind)
    assert not behind.contains(ahead)
    with pytest.raises(ValueError, match="MariaDB GTID"):
        MariadbPosition.parse("0-1")


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        (f"{A}:1-4", f"{A.upper()}:1-2:3-4", True),
        (f"{A}:1-4", f"{A}:1-5", False),
        (f"{A}:1-4", "", False),
        ("", "", True),
        ("0-1-9,7-1-1", "7-1-1, 0-1-9", True),
        ("0-1-9", "0-2-9", False),
        ("0-1-9", f"{A}:1-9", False),
    ],
)
def test_one_executed_set_in_two_texts(text: str, other: str, *, same: bool) -> None:
    assert (same_executed(text, other), same_executed(other, text)) == (same, same)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("0-1-9,7-1-3", "0-2-5,7-1-4", "0-2-5,7-1-3"),
        ("0-1-9,7-1-3", "0-1-9", "0-1-9"),
        (f"{A}:1-9", f"{A}:3-12,{B}:1", f"{A}:3-9"),
        (f"{A}:1-9", "0-1-9", ""),
        ("", "0-1-9", ""),
    ],
)
def test_common_of_two_servers_sets(one: str, other: str, common: str) -> None:
    assert (common_executed(one, other), common_executed(other, one)) == (common, common)
