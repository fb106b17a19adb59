"""Tests that kernels apply JSON differences as the Python code does, and refuse the same differences."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog import little_endian
from sluice.cdc_engine.binlog.column_types import ValueRefusedError, Values
from sluice.cdc_engine.binlog.documents import (
    changes,
    containers,
    doubles,
    json_diff,
    paths,
    print_documents,
    print_numbers,
    print_values,
    statuses,
    trees,
)
from sluice.cdc_engine.binlog.documents.jsonb import JsonFormatError
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.rows import diffs
from tests.binlog.plain_kernels import Guarded, GuardedRoom, plain
from tests.binlog.rows.json_bytes import INSERT, REMOVE, REPLACE, Path, difference, document, path_text
from tests.binlog.rows.test_json_diff import at, paths_in

KEYS = st.text(st.characters(codec="utf-8", exclude_characters='"\\'), max_size=4) | st.sampled_from(
    ["a", "b", "é", "k k", ""]
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(-1e9, 1e9) | st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
Pair = tuple[bytes, bytes]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Draws a document, and differences that can be applied to it."""
    value, small = draw(VALUES), draw(st.booleans())
    before, model, logged = document(value, small=small), [copy.deepcopy(value)], b""
    for _ in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from(paths_in(model[0])))
        new, operation, here = draw(VALUES), draw(st.sampled_from([REPLACE, INSERT, REMOVE])), at(model[0], path)
        if operation == INSERT and isinstance(here, dict):
            key = draw(KEYS.filter(lambda key: key not in here))  # noqa: B023 - drawn at once
            logged += difference(INSERT, path_text([*path, key]), new)
            here[key] = new
        elif operation == INSERT and isinstance(here, list):
            index = draw(st.integers(0, len(here) + 2))
            logged += difference(INSERT, path_text([*path, index]), new)
            here.insert(index, new)
        elif operation == REMOVE and path:
            logged += difference(REMOVE, path_text(from_end(model[0], path, draw(st.booleans()))))
            del at(model[0], path[:-1])[path[-1]]
        else:
            logged += difference(REPLACE, path_text(from_end(model[0], path, draw(st.booleans()))), new)
            at(model, (0, *path)[:-1])[(0, *path)[-1]] = new
        model = copy.deepcopy(model)
    return before, logged


def from_end(value: Any, path: Path, so: bool) -> Path:
    """Returns the path with its last array index counted from the end if `so` is True. Returns any other path unchanged."""
    if not so or not path or not isinstance(path[-1], int):
        return path
    return [*path[:-1], path[-1] - len(at(value, path[:-1]))]


def after(*given_pairs: Pair) -> list[str | None]:
    """Returns the JSON values after their differences are applied. One buffer has all pairs, each with its differences first and its JSON
    value after them.
    """
    data = b"".join(logged + before for before, logged in given_pairs)
    lengths = np.array([(len(logged), len(before)) for before, logged in given_pairs], np.int64).reshape(-1, 2)
    ends = np.cumsum(lengths).reshape(-1, 2)
    starts = ends - lengths
    rows = np.arange(len(lengths))
    noted = np.ascontiguousarray(np.array([np.zeros_like(rows), rows, starts[:, 1], lengths[:, 1]], np.int64))
    values = Values(np.frombuffer(data, np.uint8), starts[:, 0].copy(), lengths[:, 0].copy())
    return list(diffs.documents(values, noted).to_pylist())


def expected(pair: Pair) -> str | None:
    try:
        return json_diff.changed(*pair)
    except JsonFormatError:
        return None


@settings(max_examples=150)
@given(st.lists(pairs(), min_size=1, max_size=8))
def test_documents_are_changed_as_the_code_in_python_changes_them(drawn: list[Pair]) -> None:
    assert after(*drawn) == [json_diff.changed(*pair) for pair in drawn]


def test_what_a_server_writes_is_not_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffs, "_changed", lambda *_: pytest.fail("left to Python"))
    before = document({"a": {"y": [1, 2.5, "three"], "k k": 1}, "s": 5, "é": 1}, small=True)
    logged = difference(REPLACE, "$.a.y[1]", 7) + difference(INSERT, "$.é2", [1]) + difference(REMOVE, '$.a."k k"')
    logged += difference(REPLACE, "$.a.y[last]", "é") + difference(INSERT, "$.a.y[9]", {"z": None})
    logged += difference(REPLACE, "$.s[0]", 6) + difference(REPLACE, "$.é", {})
    assert after((before, logged), (before, b"")) == ['{"a": {"y": [1, 7, "é", {"z": null}]}, "s": 6, "é": {}, "é2": [1]}',
                                                      '{"a": {"y": [1, 2.5, "three"], "k k": 1}, "s": 5, "é": 1}']  # fmt: skip


def test_a_tree_of_many_nodes_and_keys_with_escapes_find_their_way() -> None:
    many = document(list(range(3 * diffs.NODES_MIN)))
    escaped = difference(INSERT, "$." + '"q\\"\\u0041"', 1)
    pair = (many, difference(REPLACE, "$[last]", "x" * 5000))
    given_pairs = (pair, (document({"a": 1}), escaped), pair)
    assert after(*given_pairs) == [json_diff.changed(*each) for each in given_pairs]


def test_a_difference_that_cannot_be_applied_is_refused_by_its_row() -> None:
    whole = (document({"a": 1}), difference(REPLACE, "$.a", 2))
    for logged in (difference(REPLACE, "$.b", 1), difference(INSERT, "$.a", 1), b"\x07", difference(REMOVE, "$")):
        with pytest.raises(ValueRefusedError, match="cannot be applied") as refused:
            after(whole, (document({"a": 1}), logged), whole)
        assert refused.value.row == 1


PLAIN = plain(little_endian, doubles, print_numbers, print_values, containers, print_documents, trees, paths, changes)
DAMAGE = st.lists(
    st.tuples(st.integers(0, 300), st.sampled_from([0, 1, 0x22, 0x5B, 0x80, 0xFF]) | st.integers(0, 255)), max_size=4
)


def change_plainly(before: bytes, logged: bytes, room: int, nodes: int = 64) -> tuple[int, bytes]:
    """Returns (status, text) for a document and differences directly after it, with no bytes around them."""
    out, offsets, tree = GuardedRoom(room), [0, 0], np.full((nodes, trees.NODE_FIELDS), -9, np.int64)
    stack = np.full(containers.STACK_SHAPE, -9, np.int64)
    document_args = [
        LocatedValues(np.array([start]), np.array([len(each)])) for start, each in ((0, before), (len(before), logged))
    ]
    with np.errstate(over="ignore"):
        status, _ = PLAIN.print_changes(Guarded(before + logged), *document_args, 0, offsets, out, tree, stack)
    return int(status), bytes(out.data[: offsets[1]])


BEFORE = document({"a": {"y": [1, 2.5, "three"], "k k": 1}, "s": 5}, small=True)
LOGGED = (
    difference(INSERT, "$.a.y[last-1]", ["new"])
    + difference(REMOVE, '$.a."k k"')
    + difference(REPLACE, "$.s", {"b": 1})
)


def test_no_byte_that_is_wrong_or_missing_leads_outside() -> None:
    for index in range(len(LOGGED)):
        for byte in (None, 0, 0x22, 0x5B, 0xFB, 0xFC, 0xFE, 0xFF):
            rest = b"" if byte is None else bytes([byte]) + LOGGED[index + 1 :]
            for before in (b"", BEFORE):
                status, text = change_plainly(before, LOGGED[:index] + rest, 300)
                wanted = expected((before, LOGGED[:index] + rest))
                assert status != print_documents.DONE or wanted is None or text.decode() == wanted


@pytest.mark.parametrize("path", ["$", "$.", "$[", '$."', "$[1", "$[last", "$[last-", '$."a', "$.a.", "a"])
def test_a_path_that_ends_too_early_is_left_and_read_no_further(path: str) -> None:
    assert change_plainly(BEFORE, difference(REMOVE, path), 300) == (statuses.LEFT, b"")


def test_each_buffer_and_count_of_nodes_is_enough_or_reported_as_too_small() -> None:
    text = json_diff.changed(BEFORE, LOGGED).encode()
    found = {change_plainly(BEFORE, LOGGED, room) for room in range(0, 500, 3)}
    assert found == {(statuses.ROOM, b""), (print_documents.DONE, text)}
    found = {change_plainly(BEFORE, LOGGED, 500, nodes) for nodes in range(20)}
    assert found == {(statuses.NODES, b""), (print_documents.DONE, text)}


@settings(max_examples=200, deadline=None)
@given(pairs(), DAMAGE, DAMAGE, st.integers(0, 2), st.integers(0, 300))
@example((document({"a": 1}), difference(REPLACE, "$.a", 2)), [], [], 0, 300)
def test_damaged_documents_and_differences_are_never_read_or_written_outside(
    pair: Pair, of_document: list[tuple[int, int]], of_differences: list[tuple[int, int]], missing: int, room: int
) -> None:
    before, logged = damaged(pair[0], of_document), damaged(pair[1], of_differences)
    logged = logged[: len(logged) - missing]
    status, text = change_plainly(before, logged, room)
    if status == print_documents.DONE and (wanted := expected((before, logged))) is not None:
        assert text.decode() == wanted
    if not (of_document or of_differences or missing) and room == 300:
        assert status in (print_documents.DONE, statuses.LEFT, statuses.ROOM)


def damaged(data: bytes, given_changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for index, byte in given_changes if data else ():
        changed[index % len(changed)] = byte
    return bytes(changed)
