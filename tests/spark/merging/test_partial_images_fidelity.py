"""Tests that the lake equals a replay of full rows, whatever columns the images lack and however the stream is divided into batches.

Row events are built byte by byte, staged by the engine, and merged by Spark. Many histories share one table (`stream` is part of the key),
so few merges check all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import ChangesSegment
from sluice.cdc_engine.contracts import Batch, Block, BlockSlice, RowEventKind, TableVersion
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging import stage
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.binlog.rows.event_bytes import block
from tests.binlog.rows.partial_events import Change, number, partial_event, text
from tests.spark.conftest import Lake

pytestmark = pytest.mark.spark

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
KEY = ("stream", "id")
TABLE = TableVersion(
    database="shop",
    table="t",
    columns=(
        number("stream", nullable=False),
        text("note", ("none",)),
        number("id", nullable=False),
        number("a", ("7",)),
        number("b", (None,)),
    ),
    key=KEY,
    version="1",
)
NAMES = tuple(column.name for column in TABLE.columns)
DEFAULTS = {"note": "none", "a": 7, "b": None}
Row = dict[str, Any]

KEYS = st.integers(0, 3)
VALUES = st.fixed_dictionaries(
    {}, optional={"note": st.text("xyz", max_size=3) | st.none(), "a": st.integers(0, 99), "b": st.none() | KEYS}
)
# The columns that an image shows in addition to the required ones.
SHOWN = st.sampled_from([(), (), ("note",), ("a", "b"), NAMES])
STEPS = st.tuples(
    st.sampled_from(["insert", "insert", "update", "update", "delete", "move", "move", "swap", "replace"]),
    *(st.tuples(KEYS, KEYS), VALUES, SHOWN, SHOWN),
)
HISTORIES = st.lists(st.lists(STEPS, min_size=4, max_size=8), min_size=20, max_size=30)
# A delivery consists of a start and an end, in percent. The start is relative to the events that were already delivered, and the end to
# all events.
DIVISIONS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=2)


@dataclasses.dataclass
class Model:
    """The table of MySQL as a dictionary, and the row events that its binlog would have."""

    stream: int
    events: list[Change]
    rows: dict[int, Row] = dataclasses.field(default_factory=dict)
    gone: dict[int, Row] = dataclasses.field(default_factory=dict)

    def step(self, kind: str, keys: tuple[int, int], values: Row, before: Sequence[str], after: Sequence[str]) -> None:
        key, other = keys
        there, free = key in self.rows, other not in self.rows
        if kind in {"delete", "replace"} and there:
            self._delete(key, before)
        if kind in {"insert", "replace"} and key not in self.rows:
            self._insert(key, values, after)
        elif kind == "update" and there:
            self._update(key, key, values, before, after)
        elif kind == "move" and there and free:
            self._update(key, other, values, before, after)
        elif kind == "swap" and there and not free and key != other:
            for old, new in ((key, 9), (other, key), (9, other)):
                self._update(old, new, values if new == 9 else {}, before, after)

    def _insert(self, key: int, values: Row, shown: Sequence[str]) -> None:
        row = {"stream": self.stream, "id": key, **DEFAULTS, **values}
        self._put(key, row)
        self.events.append(Change(INSERT, after=seen(row, (*KEY, *values, *shown))))

    def _update(self, key: int, other: int, values: Row, before: Sequence[str], after: Sequence[str]) -> None:
        old = self._take(key)
        row = {**old, "id": other, **values}
        self._put(other, row)
        moved = KEY if key != other else ()
        self.events.append(Change(UPDATE, seen(old, (*KEY, *before)), seen(row, (*moved, *values, *after))))

    def _delete(self, key: int, shown: Sequence[str]) -> None:
        self.events.append(Change(DELETE, before=seen(self._take(key), (*KEY, *shown))))

    def _take(self, key: int) -> Row:
        self.gone[key] = self.rows.pop(key)
        return self.gone[key]

    def _put(self, key: int, row: Row) -> None:
        self.rows[key] = row
        self.gone.pop(key, None)


def seen(row: Row, names: Sequence[str]) -> Row:
    return {name: row[name] for name in names}


def batch_of(given_block: Block, first: int, last: int) -> Batch:
    position = Position(epoch=1, file=given_block.file, offset=4)
    end = int(given_block.event_position[last - 1] + given_block.event_length[last - 1])
    part = BlockSlice(given_block, first, last)
    return Batch(
        batch_id=1,
        start=position,
        end=dataclasses.replace(position, offset=end),
        slices=(part,),
        event_count=last - first,
    )


@dataclasses.dataclass
class Lakes:
    """Two lakes with the same table. One lake deletes rows, and the other one marks them as deleted (`deletes: soft`)."""

    folder: Path
    spark: SparkSettings
    way: SmallSetting = "auto"
    deliveries: int = 0
    segments: list[ChangesSegment] = dataclasses.field(default_factory=list)

    def lake(self, deletes: str) -> Lake:
        return Lake(self.folder / deletes, self.spark, self.way)

    def merge(self, batch: Batch) -> None:
        self.deliveries += 1
        staged = stage(batch, "shop", self.deliveries, self.folder / "staging")
        assert not staged.stopped
        for table in staged.manifest.tables:
            self.segments += [segment for segment in table.segments if isinstance(segment, ChangesSegment)]
        for deletes in ("hard", "soft"):
            self.lake(deletes).merge_staged(staged.path, ["shop.t"], deletes=deletes)

    def rows(self, deletes: str, gone: bool = False) -> list[tuple[Any, ...]]:
        names = (*NAMES, "_sluice_deleted") if deletes == "soft" else NAMES
        rows = self.lake(deletes).rows("shop.t", *names)
        return [row[: len(NAMES)] for row in rows if deletes == "hard" or bool(row[-1]) == gone]


@pytest.fixture
def lakes(spark_server: SparkConnectServer, tmp_path_factory: pytest.TempPathFactory, way: SmallSetting) -> Lakes:
    return Lakes(tmp_path_factory.mktemp("partial"), SparkSettings(remote=spark_server.url), way)


# Each example needs several Spark merges. Hypothesis therefore does not reduce a failing example, which would take minutes.
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])
@given(histories=HISTORIES, divisions=DIVISIONS)
def test_the_lake_equals_the_replay_of_full_rows_fidelity(
    way: SmallSetting,
    spark_server: SparkConnectServer,
    tmp_path_factory: pytest.TempPathFactory,
    histories: Any,
    divisions: Any,
) -> None:
    events: list[Change] = []
    models = [Model(number, events) for number in range(len(histories))]
    # The steps of all histories alternate, because the end of a segment concerns all histories. So there are few segments.
    for steps in itertools.zip_longest(*histories):
        for model, step in zip(models, steps, strict=True):
            if step is not None:
                model.step(*step)
    if not events:
        return
    lakes = Lakes(tmp_path_factory.mktemp("partial"), SparkSettings(remote=spark_server.url), way)
    given_block = block([(TABLE, event.kind, partial_event(TABLE, [event])) for event in events])
    done = 0
    for first, last in [*divisions, (50, 100)]:
        start, end = done * first // 100, max(done * first // 100, len(events) * last // 100)
        if end > start:
            lakes.merge(batch_of(given_block, start, end))
        done = max(done, end)
    expected = [
        sorted_rows([row for model in models for row in getattr(model, name).values()]) for name in ("rows", "gone")
    ]
    assert [sorted_rows(lakes.rows("hard"))] == expected[:1]
    assert [sorted_rows(lakes.rows("soft", gone)) for gone in (False, True)] == expected


WIDE = dataclasses.replace(
    TABLE,
    columns=(number("id", nullable=False), *(number(f"c{index}", (None,)) for index in range(70))),
    key=("id",),
)


def test_the_bits_of_a_wide_table_and_rows_the_lake_does_not_have_fidelity(lakes: Lakes) -> None:
    """Each merge costs seconds, so one test has all cases: two groups of bits, deletes with only the key, and changes of rows that the
    lake does not have.
    """
    whole = {f"c{index}": index for index in range(70)}
    given_block = block(
        [
            (WIDE, change.kind, partial_event(WIDE, [change]))
            for change in (
                Change(INSERT, after={"id": 1, **whole}),
                Change(INSERT, after={"id": 2, **whole}),
                *(Change(UPDATE, {"id": 1}, {f"c{index}": -index}) for index in (61, 62, 63, 69)),
                Change(DELETE, before={"id": 2}),
                Change(DELETE, before={"id": 3}),
                Change(UPDATE, {"id": 4}, {"c0": 1}),
                Change(UPDATE, {"id": 5}, {"id": 1, "c0": 1}),
            )
        ]
    )
    lakes.merge(batch_of(given_block, 0, 8))
    changed = tuple(-index if index in {61, 62, 63, 69} else index for index in range(70))
    names = ("id", *whole)
    assert lakes.lake("hard").rows("shop.t", *names) == [(1, *changed)]
    assert lakes.lake("soft").rows("shop.t", *names, "_sluice_deleted") == [
        (1, *changed, False),
        (2, *whole.values(), True),
    ]
    for first in (8, 9):  # an update, and a change of the key to an existing key
        with pytest.raises(MergeError, match="to a row that the Delta table does not have"):
            lakes.merge(batch_of(given_block, first, first + 1))
    assert lakes.lake("hard").rows("shop.t", *names) == [(1, *changed)]


def sorted_rows(rows: Sequence[Row | tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    found = [tuple(row[name] for name in NAMES) if isinstance(row, dict) else row for row in rows]
    return sorted(found, key=lambda row: (row[0], row[2]))
