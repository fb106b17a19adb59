"""Simulates years of a destination in seconds, for the files that its engine keeps (`./sluice bench years`).

Each day, tables are created, altered and dropped, snapshots begin and end, and operators approve statements and give schemas. Production's
own code writes and removes the files. Nothing is read from a server. After the first part of the time, disk and memory may not grow.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import show, write_json
from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.table_meta.change.policy import PLANS, PendingChange, SchemaDecisions
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.resolutions import Resolutions
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, TableSchema
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter

DATABASE, TABLES = "shop", 30  # There are this many tables at any time.
NAMES = 90  # The schema history keeps a record of each name of a dropped table, so the names of dropped tables are used again.
ALTERS = 3  # Statements that alter a table, each day.
STATEMENT_BYTES = 1000  # Between the positions of two statements.
SAMPLES = 60
WARM_PART = 0.5  # The share of the time in which files may grow up to their bounds.
GROWTH_MAX = 1.1


@dataclasses.dataclass(frozen=True)
class Sample:
    """The files of a destination after a number of days. `objects` is the number of Python objects, which is a measure of the memory of
    this process.
    """

    day: int
    files: int
    disk_bytes: int
    objects: int


class Years:
    """The files of one destination in `folder`. `answers_kept` is how many answers of operators are kept."""

    def __init__(self, folder: Path, seed: int, answers_kept: int) -> None:
        self._folder, self._chance, self._kept = folder, random.Random(seed), answers_kept
        self._statements, self._created = 0, 0
        self._reviews, self._resolutions = ReviewFiles(folder), Resolutions(folder)
        review = SchemaDecisions(policy=lambda *_: _APPLIED, approved=self._reviews.approved, forget=self._forget)
        history = TableHistory(folder / "schema.jsonl", lambda database, _: database == DATABASE, review)
        server = DdlServerFacts(flavour="mysql", charset="utf8mb4")
        history.seed(SchemaSnapshot(server, ((DATABASE, "utf8mb4"),), ()), self._now())
        self._published = PublishedHistory(history, TableListWriter(folder), lambda: None, kept=lambda: [self._now()])
        self._snapshots = SnapshotRecords(folder)
        self._tables: list[str] = []

    def live_a_day(self) -> None:
        self._create()
        if len(self._tables) > TABLES:
            self._drop()
        for _ in range(ALTERS):
            self._alter()
        self._answer()
        captured = {each.name for each in read_tables(self._folder)}
        self._snapshots.forget_ended(captured, time.time() + 1)

    def sizes(self) -> tuple[int, int]:
        """Returns the number of files, and their bytes."""
        found = [each.stat().st_size for each in self._folder.rglob("*") if each.is_file()]
        return len(found), sum(found)

    def _now(self) -> Position:
        return Position(
            epoch=1,
            file=f"binlog.{1 + self._statements // 1000:06d}",
            offset=(1 + self._statements % 1000) * STATEMENT_BYTES,
        )

    def _execute(self, statement: str) -> None:
        self._statements += 1
        self._published.apply(statement, DATABASE, self._now())

    def _create(self) -> None:
        self._created += 1
        name = next(
            each for number in itertools.count(self._created) if (each := f"t{number % NAMES}") not in self._tables
        )
        self._tables.append(name)
        self._execute(f"CREATE TABLE {name} (id INT NOT NULL PRIMARY KEY, c0 VARCHAR(40))")
        self._snapshots.begin(wanted(f"{DATABASE}.{name}", self._now(), time.time()))
        self._snapshots.update(f"{DATABASE}.{name}", lambda record: record.canceled())

    def _drop(self) -> None:
        name = self._tables.pop(self._chance.randrange(len(self._tables)))
        self._execute(f"DROP TABLE {name}")

    def _alter(self) -> None:
        self._execute(f"ALTER TABLE {self._chance.choice(self._tables)} COMMENT = 'statement {self._statements}'")

    def _answer(self) -> None:
        table, order_key = self._chance.choice(self._tables), self._now().order_key
        held = PendingChange(
            destination=DATABASE,
            database=DATABASE,
            table=table,
            order_key=order_key,
            position=str(self._now()),
            statement=f"ALTER TABLE {table} DROP COLUMN c0",
            items=(),
            choices=("apply",),
        )
        self._reviews.note(held)
        pending = self._reviews.first_after(f"{DATABASE}.{table}", order_key - 1)
        if pending is not None:
            self._reviews.approve(pending, "apply")
        schema = TableSchema(database=DATABASE, table=table, charset="utf8mb4", columns=())
        self._resolutions.keep(schema, order_key)

    def _forget(self, order_key: int) -> None:
        self._reviews.forget_before(order_key, self._kept)
        self._resolutions.forget_oldest(self._kept)


_APPLIED = {**dict.fromkeys(PLANS, "apply"), "drop": "keep", "drop_table": "ignore"}


def live(folder: Path, *, days: int, seed: int, answers_kept: int) -> list[Sample]:
    """Simulates `days` days, and returns about SAMPLES samples of the files."""
    years, samples = Years(folder, seed, answers_kept), list[Sample]()
    for day in range(1, days + 1):
        years.live_a_day()
        if day % max(1, days // SAMPLES) == 0:
            gc.collect()
            samples.append(Sample(day, *years.sizes(), len(gc.get_objects())))
    return samples


def growing(samples: list[Sample]) -> list[str]:
    """Returns what grew after the first part of the time: its peak in the last quarter is larger than in the quarter before."""
    late = samples[int(WARM_PART * len(samples)) :]
    before, after = late[: len(late) // 2], late[len(late) // 2 :]
    measures: dict[str, Callable[[Sample], int]] = {
        "files": lambda each: each.files,
        "disk_bytes": lambda each: each.disk_bytes,
        "objects": lambda each: each.objects,
    }
    return [name for name, of in measures.items() if max(map(of, after)) > GROWTH_MAX * max(map(of, before))]


def run(json_file: Path | None, *, days: int, seed: int, answers_kept: int) -> int:
    """Simulates `days` days, and prints the samples. Returns how many measures grew."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  a file system in memory
    with tempfile.TemporaryDirectory(prefix="sluice-years-", dir=base) as folder:
        samples = live(Path(folder), days=days, seed=seed, answers_kept=answers_kept)
    rows: list[dict[str, Any]] = [dataclasses.asdict(each) for each in samples]
    found = growing(samples)
    show(f"{days} days", rows[:: max(1, len(rows) // 10)])
    write_json(json_file, {"seed": seed, "growing": found, "samples": rows})
    return len(found)
