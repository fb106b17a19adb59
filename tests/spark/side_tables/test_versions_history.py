"""Compares the fold of a history with a plain model that goes through the stream row by row, without side effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.spark_jobs.side_tables.versions import FROM_KEY, IS_CURRENT, TO_KEY, VALID_FROM, VALID_TO, folded
from tests.spark.staged import ARROW_TYPES, DELETE, INSERT, TIME_US, UPDATE_AFTER, UPDATE_BEFORE

Version = tuple[int, str, int, int | None]  # key, value, from, to


@dataclasses.dataclass
class Model:
    """Models a history: it has every version that a reader sees who reads the table after each transaction. `open` has the current values
    and the transactions since which they are valid.
    """

    open: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    closed: list[Version] = dataclasses.field(default_factory=list)

    def commit(self, index: int, images: Sequence[tuple[int, int, str]]) -> None:
        there = {key: value for key, (value, _) in self.open.items()}
        touched = set()
        for operation, key, value in images:
            touched.add(key)
            if operation in {INSERT, UPDATE_AFTER}:
                there[key] = value
            else:
                there.pop(key, None)
        for key in touched:
            if key in self.open:
                value, since = self.open.pop(key)
                self.closed.append((key, value, since, index))
            if key in there:
                self.open[key] = (there[key], index)

    @property
    def versions(self) -> list[Version]:
        current: list[Version] = [(key, value, since, None) for key, (value, since) in self.open.items()]
        return sorted([*self.closed, *current], key=lambda each: each[:3])


def images_of(transactions: Sequence[tuple[int, Sequence[tuple[int, int, str]]]]) -> pa.Table:
    rows = [(op, index, key, value) for index, images in transactions for op, key, value in images]
    columns: dict[str, Any] = {
        "_sluice_operation": pa.array([row[0] for row in rows], pa.int8()),
        "_sluice_order_key": pa.array([row[1] for row in rows], pa.int64()),
        "_sluice_commit_time": pa.array([TIME_US + row[1] for row in rows], ARROW_TYPES["timestamp"]),
        "_sluice_row": pa.array(range(1, len(rows) + 1), pa.int64()),
        "id": pa.array([row[2] for row in rows], pa.int64()),
        "note": pa.array([row[3] for row in rows], pa.string()),
    }
    return pa.table(columns)


@dataclasses.dataclass
class Table:
    """A history as `history.py` keeps it: each batch closes the open versions of its keys, and opens new ones."""

    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def merge(self, images: pa.Table) -> None:
        made = folded(images, ["id"], ["id", "note"])
        for closing in made.closed.to_pylist():
            for row in self.rows:
                if row["id"] == closing["id"] and row[IS_CURRENT] and row[FROM_KEY] < closing[TO_KEY]:
                    row |= {TO_KEY: closing[TO_KEY], VALID_TO: closing[VALID_TO], IS_CURRENT: False}
        self.rows += made.opened.to_pylist()

    @property
    def versions(self) -> list[Version]:
        return sorted(
            ((row["id"], row["note"], row[FROM_KEY], row[TO_KEY]) for row in self.rows), key=lambda each: each[:3]
        )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, list[tuple[int, int, str]]]]:
    """Draws transactions of statements that a table accepts, as row events describe them: the position, and (operation, key, value) of each
    image.
    """
    there: dict[int, str] = {}
    transactions = []
    for number in range(draw(st.integers(1, 6))):
        images: list[tuple[int, int, str]] = []
        for _ in range(draw(st.integers(1, 4))):
            key, value = draw(st.integers(1, 3)), draw(st.sampled_from("abc"))
            if key not in there:
                images.append((INSERT, key, value))
                there[key] = value
            elif draw(st.booleans()):
                other = draw(st.integers(1, 3))
                if other != key and other not in there:
                    images += [(UPDATE_BEFORE, key, there[key]), (UPDATE_AFTER, other, value)]
                    there.pop(key)
                    there[other] = value
                else:
                    images.append((UPDATE_AFTER, key, value))
                    there[key] = value
            else:
                images.append((DELETE, key, there.pop(key)))
        transactions.append((16 * (number + 1), images))
    return transactions


@given(stream=histories(), ends=st.sets(st.integers(1, 6)))
@settings(max_examples=400, deadline=None)
def test_any_division_into_batches_gives_the_versions_of_the_model_history(
    stream: list[tuple[int, list[tuple[int, int, str]]]], ends: set[int]
) -> None:
    model, table, begin = Model(), Table(), 0
    for index, images in stream:
        model.commit(index, images)
    for end in [*sorted(at for at in ends if at < len(stream)), len(stream)]:
        if end > begin:
            table.merge(images_of(stream[begin:end]))
        begin = end
    assert table.versions == model.versions
    assert all((row[TO_KEY] is None) == row[IS_CURRENT] for row in table.rows)
    assert all(row[VALID_FROM] is not None and (row[VALID_TO] is None) == row[IS_CURRENT] for row in table.rows)


def test_nothing_folds_to_nothing_history() -> None:
    made = folded(images_of([]), ["id"], ["id", "note"])
    assert (made.opened.num_rows, made.closed.num_rows) == (0, 0)
