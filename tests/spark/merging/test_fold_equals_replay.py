"""Tests that the lake equals a replay of the stream, whatever happens to keys and however the stream is divided into batches.

Many streams share one table (`stream` is part of the key), so one Spark merge checks all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs import session
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Changes, Image, Schema, stage

pytestmark = pytest.mark.spark

KEYED = Schema({"stream": "int", "id": "int", "value": "string"}, key=("stream", "id"))
KEYLESS = dataclasses.replace(KEYED, key=())
KEYS = st.integers(0, 4)
STEPS = st.tuples(st.sampled_from(["insert", "update", "delete", "move", "swap", "replace"]), KEYS, KEYS)
STREAMS = st.lists(st.lists(STEPS, max_size=12), min_size=15, max_size=40)
# A delivery has two positions, in hundredths of the stream: its start, which is not after what was delivered, and its end.
DIVISIONS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=2)


@dataclasses.dataclass
class Model:
    """Models a table of MySQL as a dictionary, with the transactions that its binlog would have."""

    stream: int
    order_keys: Iterator[int]
    rows: dict[int, str] = dataclasses.field(default_factory=dict)
    deleted: dict[int, str] = dataclasses.field(default_factory=dict)
    transactions: list[list[Image]] = dataclasses.field(default_factory=list)

    def step(self, kind: str, key: int, other: int) -> None:
        images: list[Image] = []
        if kind == "insert" and key not in self.rows:
            self._put(images, INSERT, key)
        elif kind == "update" and key in self.rows:
            self._put(images, UPDATE_AFTER, key)
        elif kind == "delete" and key in self.rows:
            self._take(images, DELETE, key)
        elif kind == "replace" and key in self.rows:
            self._take(images, DELETE, key)
            self._put(images, INSERT, key)
        elif kind == "move" and key in self.rows and other not in self.rows:
            self._move(images, key, other)
        elif kind == "swap" and key != other and {key, other} <= set(self.rows):
            self._move(images, key, 99)
            self._move(images, other, key)
            self._move(images, 99, other)
        if images:
            self.transactions.append(images)

    def _put(self, images: list[Image], operation: int, key: int) -> None:
        order_key = next(self.order_keys)
        self.rows[key] = f"v{order_key}"
        self.deleted.pop(key, None)
        images.append(Image(operation, order_key, {"stream": self.stream, "id": key, "value": self.rows[key]}))

    def _take(self, images: list[Image], operation: int, key: int) -> None:
        self.deleted[key] = self.rows.pop(key)
        images.append(
            Image(operation, next(self.order_keys), {"stream": self.stream, "id": key, "value": self.deleted[key]})
        )

    def _move(self, images: list[Image], key: int, other: int) -> None:
        self._take(images, UPDATE_BEFORE, key)
        self._put(images, UPDATE_AFTER, other)


def replay(streams: Sequence[Sequence[tuple[str, int, int]]]) -> list[Model]:
    order_keys = itertools.count(1)
    models = [Model(number, order_keys) for number in range(len(streams))]
    for model, steps in zip(models, streams, strict=True):
        for step in steps:
            model.step(*step)
    return models


def deliveries(transactions: Sequence[list[Image]], divisions: Sequence[tuple[int, int]]) -> list[list[Image]]:
    """Returns batches as rollbacks may divide the stream. Each batch starts at or before the end of the batches before it, and the last
    batch ends the stream.
    """
    divided: list[list[Image]] = []
    done = 0
    for first, last in [*divisions, (50, 100)]:
        start = done * first // 100
        end = max(start, len(transactions) * last // 100)
        images = [image for transaction in transactions[start:end] for image in transaction]
        if images:
            divided.append(images)
        done = max(done, end)
    return divided


@pytest.fixture(scope="module", params=["small job", "small", "large"])
def size(request: pytest.FixtureRequest) -> Iterator[SmallSetting]:
    """Yields the way of merging. Spark's own merge is tested once with the settings for few rows, and once with those for many rows."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "large":
            patch.setattr(session, "SMALL_ROWS_MAX", -1)
        yield "small" if request.param == "small job" else "spark"


# Each example takes several Spark merges. So hypothesis reports a failure as it found it, and does not spend minutes to reduce the example.
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])
@given(streams=STREAMS, divisions=DIVISIONS)
def test_the_lake_equals_the_replay_of_the_stream(
    size: SmallSetting,
    spark_server: SparkConnectServer,
    tmp_path_factory: pytest.TempPathFactory,
    streams: Any,
    divisions: Any,
) -> None:
    models = replay(streams)
    folder = tmp_path_factory.mktemp("fold")
    lake = Lake(folder, SparkSettings(remote=spark_server.url), size)
    transactions = [transaction for model in models for transaction in model.transactions]
    batches = deliveries(transactions, divisions)
    for number, images in enumerate(batches):
        merge_all(lake, number, images, {})
    if batches:
        compare(lake, models, transactions)


def merge_all(lake: Lake, number: int, images: list[Image], ways: Mapping[str, SmallSetting]) -> None:
    """Merges one batch into the three tables. `ways` has the way of merging of each table whose way differs from the lake's."""
    tables = {
        "shop.hard": [Changes(KEYED, images)],
        "shop.soft": [Changes(KEYED, images)],
        "shop.log": [Changes(KEYLESS, images)],
    }
    directory = stage(lake.folder / "staging", tables, delivery=number)
    targets = {
        name: lake.target(name, deletes="soft" if name == "shop.soft" else "hard", merge=ways.get(name, lake.way))
        for name in tables
    }
    merge_batch(read_staged_batch(Path(directory)), targets, lake.spark)


def compare(lake: Lake, models: Sequence[Model], transactions: Sequence[list[Image]]) -> None:
    live = sorted((model.stream, key, value) for model in models for key, value in model.rows.items())
    gone = sorted((model.stream, key, value) for model in models for key, value in model.deleted.items())
    assert sorted(lake.rows("shop.hard", "stream", "id", "value")) == live
    soft = lake.rows("shop.soft", "stream", "id", "value", "_sluice_deleted")
    assert sorted(row[:3] for row in soft if not row[3]) == live
    assert sorted(row[:3] for row in soft if row[3]) == gone
    every_order_key = [image.order_key for transaction in transactions for image in transaction]
    assert sorted(row[0] for row in lake.rows("shop.log", "_sluice_order_key")) == every_order_key
