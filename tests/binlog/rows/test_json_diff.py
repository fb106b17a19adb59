"""Tests that logged differences change a JSON document as a model in Python does, and that differences that cannot be applied raise
JsonFormatError.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.documents.json_diff import changed, legs_of
from sluice.cdc_engine.binlog.documents.jsonb import JsonFormatError
from tests.binlog.rows.json_bytes import INSERT, REMOVE, REPLACE, Path, difference, document, path_text, text_of

KEYS = st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(["a", "b", "$x", "é", "k k", 'q"\\\n', ""])
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
DOCUMENT = {"a": {"y": [1, 2, "three"], "k k": 1}, "s": 5, "long": "value"}


def paths_in(value: Any, path: Path = ()) -> list[Path]:
    """Returns the paths of all values in a value, its own path first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for leg, each in items for found in paths_in(each, (*path, leg)))]


def at(value: Any, path: Path) -> Any:
    for leg in path:
        value = value[leg]
    return value


def written(value: Any, path: Path, draw: st.DataObject) -> str:
    """Returns the text of a path. Some array cells, chosen at random, are counted from the end of their array."""
    legs: list[str | int] = []
    for depth, leg in enumerate(path):
        from_end = isinstance(leg, int) and draw.draw(st.booleans())
        legs.append(leg - len(at(value, path[:depth])) if from_end and isinstance(leg, int) else leg)
    return path_text(legs)


@given(VALUES, st.data())
def test_differences_make_what_the_model_makes(value: Any, draw: st.DataObject) -> None:
    before, model, logged = document(value), [copy.deepcopy(value)], b""
    for _ in range(draw.draw(st.integers(0, 5))):
        path = draw.draw(st.sampled_from(paths_in(model[0])))
        new, operation = draw.draw(VALUES), draw.draw(st.sampled_from([REPLACE, INSERT, REMOVE]))
        here = at(model[0], path)
        if operation == INSERT and isinstance(here, dict):
            key = draw.draw(KEYS.filter(lambda key: key not in at(model[0], path)))  # noqa: B023 - drawn at once
            logged += difference(INSERT, path_text([*path, key]), new)
            here[key] = new
        elif operation == INSERT and isinstance(here, list):
            index = draw.draw(st.integers(0, len(here) + 2))
            logged += difference(INSERT, path_text([*path, index]), new)
            here.insert(index, new)
        elif operation == REMOVE and path:
            logged += difference(REMOVE, written(model[0], path, draw))
            del at(model[0], path[:-1])[path[-1]]
        else:
            logged += difference(REPLACE, written(model[0], path, draw), new)
            at(model, (0, *path)[:-1])[(0, *path)[-1]] = new
        model = copy.deepcopy(model)  # The same drawn value may be drawn again.
    assert changed(before, logged) == text_of(model[0])


def test_no_differences_are_the_document() -> None:
    assert changed(document(DOCUMENT), b"") == text_of(DOCUMENT)


@pytest.mark.parametrize(
    ("path", "legs"),
    [("$", []), ("$.a[0]", ["a", 0]), ('$."k k"[last].é', ["k k", -1, "é"]), ('$."\\"\\u0041\\n"[last-3]', ['"A\n', -4])],
)  # fmt: skip
def test_paths_are_read(path: str, legs: list[str | int]) -> None:
    assert legs_of(path) == legs


def test_the_one_cell_of_what_is_no_array_is_the_value() -> None:
    """MySQL treats the path $.s[0] as $.s if $.s is no array. MySQL logs the shorter path, but accepts both."""
    logged = difference(REPLACE, "$.s[0]", 6) + difference(REPLACE, "$[last].a[0].y[0]", 7)
    assert changed(document(DOCUMENT), logged) == text_of({**DOCUMENT, "s": 6, "a": {"y": [7, 2, "three"], "k k": 1}})


def test_an_insert_before_the_first_is_at_the_beginning() -> None:
    assert changed(document([1, 2]), difference(INSERT, "$[last-5]", 0)) == "[0, 1, 2]"


@pytest.mark.parametrize(
    ("logged", "words"),
    [
        (difference(REPLACE, "$.none", 1), "does not have"),
        (difference(REPLACE, "$.a.y[3]", 1), "does not have"),
        (difference(REPLACE, "$.a.y[last-3]", 1), "does not have"),
        (difference(REPLACE, "$.a.y.z", 1), "does not have"),
        (difference(REPLACE, "$.s[1]", 1), "does not have"),
        (difference(INSERT, "$", 1), "does not have"),
        (difference(INSERT, "$.s", 1), "already"),
        (difference(INSERT, "$.s[0]", 1), "does not have"),
        (difference(INSERT, "$.a[0]", 1), "does not have"),
        (difference(INSERT, "$.a.y.z", 1), "does not have"),
        (difference(INSERT, "$.b.c", 1), "does not have"),
        (difference(REMOVE, "$"), "does not have"),
        (difference(REMOVE, "$.none"), "does not have"),
        (difference(REMOVE, "$.s[0]"), "does not have"),
        (difference(REMOVE, "$.a.y[9]"), "does not have"),
        (difference(REMOVE, "a"), "cannot be read"),
        (difference(REMOVE, ""), "cannot be read"),
        (difference(REMOVE, "$.*"), "cannot be read"),
        (difference(REMOVE, "$.a.y[0 to 1]"), "cannot be read"),
        (difference(REMOVE, "$**.a"), "cannot be read"),
        (difference(REMOVE, '$."a'), "cannot be read"),
        (difference(REMOVE, '$."\\x"'), "not a JSON string"),
        (difference(REMOVE, '$."\\ud800"'), "not a JSON string"),
        (difference(3, "$.a", 1), "operation 3"),
        (difference(REPLACE, "$.a", 1)[:-1], "ends too early"),
        (b"\x00", "ends too early"),
        (b"\x02\xfb", "which cannot begin an integer"),
        (b"\x02\xfe" + b"\xff" * 8, "ends too early"),
        (b"\x02\x02$\xff", "not UTF-8"),
        (b"\x00\x01$\x02\x63\x00", "unknown type"),
    ],
)  # fmt: skip
def test_what_cannot_be_applied_is_refused(logged: bytes, words: str) -> None:
    with pytest.raises(JsonFormatError, match=words):
        changed(document(DOCUMENT), logged)


def test_values_put_into_each_other_for_ever_are_refused() -> None:
    deep: Any = []
    for _ in range(80):
        deep = [deep]
    logged = b"".join(difference(INSERT, "$" + "[0]" * (81 * count), deep) for count in range(1, 30))
    with pytest.raises(JsonFormatError, match="too deep"):
        changed(document(deep), logged)


@given(st.binary(max_size=60), st.binary(max_size=60))
@example(document(DOCUMENT), difference(INSERT, "$.é", "x")[:-1])
def test_any_bytes_are_a_text_or_the_one_error(before: bytes, logged: bytes) -> None:
    with contextlib.suppress(JsonFormatError):
        assert isinstance(changed(before, logged), str)
    with contextlib.suppress(JsonFormatError):
        assert isinstance(changed(document(DOCUMENT), logged), str)
