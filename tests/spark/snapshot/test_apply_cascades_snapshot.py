"""Tests what foreign keys change in a table while a snapshot reads its rows, in every order of changes. The tests need no server and no
Spark.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import Cascade, StagedTable
from sluice.spark_jobs.cascades.play import ChangeOrder, Event, Passed
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.snapshot import affected_rows, buffered_cascades
from sluice.spark_jobs.snapshot.apply_cascades import apply_cascades, given_again
from sluice.spark_jobs.snapshot.buffered_cascades import (
    TooManyChangesError,
    buffer_changes,
    buffered_events,
    complete_up_to,
    mark_complete,
)
from sluice.spark_jobs.snapshot.buffering import buffer_table
from sluice.spark_jobs.snapshot.publication import CascadesUnseenError
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.spark.conftest import Lake
from tests.spark.snapshot.test_publish_snapshot import Holding, Reading
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Changes, Image, Schema, stage

NAME = "shop.child"
TIME = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
IDS, PARENTS, CHUNKS = 12, 5, 3
KEYED = Schema({"id": "int", "up": "int", "friend": "int", "word": "string"}, key=("id",))
LOG = dataclasses.replace(KEYED, key=())


def foreign_key(
    column: str, on_delete: Literal["CASCADE", "SET NULL"], key: tuple[str, ...] = ("id",), name: str = ""
) -> Cascade:
    return Cascade(
        name=name or f"fk_{column}",
        parent=("shop", "parent"),
        child=("shop", "child"),
        columns=(column,),
        referenced=("id",),
        on_delete=on_delete,
        on_update="CASCADE",
        doubt="",
        key=key,
        generated=False,
        unlike=False,
    )


Row = dict[str, Any]


@dataclasses.dataclass
class Source:
    """Simulates a parent and a child table of a server. For each transaction, `log` has the row images of the child, and the changes of
    keys that foreign keys pass on to it.
    """

    chance: random.Random
    key: tuple[str, ...] = ("id",)
    fresh: bool = False  # An UPDATE gives a parent only keys that no parent ever had.
    parents: set[int] = dataclasses.field(default_factory=lambda: set(range(1, PARENTS)))
    rows: dict[int, Row] = dataclasses.field(default_factory=dict)
    log: list[list[Image | Passed]] = dataclasses.field(default_factory=list)
    states: list[list[Row]] = dataclasses.field(default_factory=lambda: [[]])
    new: int = 100

    @property
    def keys(self) -> tuple[Cascade, Cascade]:
        return foreign_key("up", "CASCADE", self.key), foreign_key("friend", "SET NULL", self.key)

    def transact(self) -> None:
        number = len(self.log) + 1
        self.log.append([])
        for index in range(self.chance.randrange(1, 5)):
            self.chance.choice([self.lose, self.move, self.have, self.put, self.put, self.put, self.drop])(
                ChangeOrder(number, index << 1, TIME)
            )
        self.states.append([dict(row) for row in self.rows.values()])

    def some(self) -> int:
        return self.chance.choice(sorted(self.parents)) if self.parents else 1

    def have(self, _at: ChangeOrder) -> None:
        self.parents.add(self.chance.randrange(1, PARENTS))

    def lose(self, at: ChangeOrder) -> None:
        gone = self.some()
        self.parents.discard(gone)
        self.log[-1] += [Passed(at, each, (gone,), None) for each in self.keys]
        self.rows = {key: row for key, row in self.rows.items() if row["up"] != gone}
        self.rows = {
            key: {**row, "friend": None if row["friend"] == gone else row["friend"]} for key, row in self.rows.items()
        }

    def move(self, at: ChangeOrder) -> None:
        self.new += 1
        old, new = self.some(), self.new if self.fresh else self.chance.randrange(1, PARENTS)
        if new in self.parents or old not in self.parents:
            return
        self.parents = self.parents - {old} | {new}
        self.log[-1] += [Passed(at, each, (old,), (new,)) for each in self.keys]
        for row in self.rows.values():
            row.update({name: new for name in ("up", "friend") if row[name] == old})

    def put(self, at: ChangeOrder) -> None:
        if not self.parents:
            return
        key = self.chance.randrange(IDS)
        row = {"id": key, "up": self.some(), "friend": self.chance.choice([None, self.some()]), "word": f"w{at}"}
        before = self.rows.get(key)
        if before is not None and not self.key:
            self.image(at, UPDATE_BEFORE, before)
        self.rows[key] = row
        self.image(at, UPDATE_AFTER if before else INSERT, row)

    def drop(self, at: ChangeOrder) -> None:
        if row := self.rows.pop(self.chance.randrange(IDS), None):
            self.image(at, DELETE, row)

    def image(self, at: ChangeOrder, operation: int, row: Row) -> None:
        self.log[-1].append(Image(operation, at.order_key, {**row, "_place": at.index | (operation != UPDATE_BEFORE)}))


@dataclasses.dataclass
class Read:
    """A snapshot of the child, which the test advances."""

    folder: Path
    schema: Schema
    begin: int = 0
    batches: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.holds = Holding(self.folder / "held")
        self.holds.begin(NAME, self.begin)
        self.reading = Reading(Lake(self.folder, SparkSettings()), NAME, self.schema, self.holds)

    def stage(self, transactions: Sequence[Sequence[Image | Passed]]) -> tuple[StagedTable, list[Passed]]:
        """Stages transactions as a batch. Returns the staged table, and the changes of keys that foreign keys pass on."""
        every = [each for transaction in transactions for each in transaction]
        images = [each for each in every if isinstance(each, Image)]
        self.batches += 1
        segments = [Changes(self.schema, images)] if images else []
        root = self.folder / "staging"
        batch = read_staged_batch(stage(root, {NAME: segments}, delivery=self.batches))
        sequence_numbers = root / f"{self.batches}.places"
        sequence_numbers.write_bytes(np.array([each.values["_place"] for each in images], "<i8").tobytes())
        return dataclasses.replace(batch.tables[0], positions=sequence_numbers), [
            each for each in every if isinstance(each, Passed)
        ]

    def take(self, transactions: Sequence[Sequence[Image | Passed]], end: int, stops_after: str = "") -> None:
        """Buffers a batch. `stops_after` is the step after which it stops, as a crash would: "changes" or "images"."""
        table, changes = self.stage(transactions)
        buffered = self.holds.open[NAME]
        buffer_changes(table, changes, buffered, end)
        if stops_after == "changes":
            return
        buffer_table(table, self.reading.lake.target(NAME), self.holds, buffered)
        if stops_after != "images":
            mark_complete(NAME, buffered, end)

    def label(self, index: int) -> int:
        return self.reading.publication(index, self.begin).label()

    def publish(self, index: int) -> list[Row]:
        """Returns the rows that a publication writes. For a table without a key, this is one row for each row that the changes leave."""
        given = self.reading.publication(index, self.begin)
        apply_cascades(given, given.label(), BY_HAND)
        read = [row for name in given.chunks.names() for row in pq.read_table(given.chunks.opened(name)).to_pylist()]
        images = [
            row for name in given.changes.names() for row in pq.read_table(given.changes.opened(name)).to_pylist()
        ]
        images.sort(key=lambda row: (row["_sluice_order_key"], row["_sluice_row"]))
        if not self.schema.key:
            return self._left(read, images, given.order_key)
        rows = {row["id"]: row for row in read}
        for image in images:
            if image["_sluice_operation"] in {INSERT, UPDATE_AFTER}:
                rows[image["id"]] = image
            else:
                rows.pop(image["id"], None)
        return [{name: row[name] for name in self.schema.columns} for row in rows.values()]

    def _left(self, read: Sequence[Row], images: Sequence[Row], index: int) -> list[Row]:
        count = Counter(tuple(row[name] for name in self.schema.columns) for row in read)
        for image in images:
            if image["_sluice_order_key"] > index:
                values = tuple(image[name] for name in self.schema.columns)
                count[values] += 1 if image["_sluice_operation"] in {INSERT, UPDATE_AFTER} else -1
        assert min(count.values(), default=0) >= 0
        return [dict(zip(self.schema.columns, values, strict=True)) for values in count.elements()]


def in_order(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def play(seed: int, folder: Path, schema: Schema, *, fresh: bool) -> tuple[Source, Read, int, int]:
    """Executes random transactions before, during and after the reading of the rows. Some batches are first staged in part, and then
    repeated with another end.
    """
    chance = random.Random(seed)  # noqa: S311  not a secret
    source = Source(chance, schema.key, fresh)
    for _ in range(40):
        source.transact()
    begin = chance.randrange(5, 15)
    high = chance.randrange(begin, 30)
    read = Read(folder, schema, begin)
    if schema.key:
        for chunk in range(CHUNKS):
            state = source.states[chance.randrange(begin, high + 1)]
            read.reading.chunk(chunk + 1, [row for row in state if row["id"] % CHUNKS == chunk])
    else:
        read.reading.chunk(1, source.states[high])
    at, end = begin, chance.randrange(high, 41)
    while at < end:
        until = min(end, at + chance.randrange(1, 8))
        while chance.random() < 0.3:
            until = chance.randrange(at + 1, 41)
            read.take(source.log[at:until], until, chance.choice(["changes", "images"]))
        read.take(source.log[at:until], until)
        at = until
    if chance.random() < 0.3:  # A run ended during the next batch.
        read.take(source.log[end : end + 5], end + 5, chance.choice(["changes", "images"]))
    return source, read, high, end


@pytest.fixture
def folder(servers_folder: Path) -> Iterator[Path]:
    """Returns a folder in memory. Each seed syncs about fifty files, which would take most of the time of these tests on a disk."""
    with tempfile.TemporaryDirectory(dir=servers_folder) as name:
        yield Path(name)


@pytest.mark.found
def test_rows_that_were_read_while_parents_went_are_those_of_the_source(folder: Path) -> None:
    """Defect 15: if a foreign key changed rows of a table while a snapshot read them, all rows of the table were read again."""
    for seed in range(60):
        source, read, _, end = play(seed, folder / f"{seed}", KEYED, fresh=True)
        assert in_order(read.publish(end)) == in_order(source.states[read.label(end)]), seed


def test_a_value_that_comes_back_by_a_key_update_has_the_rows_read_again_or_the_result_is_right(folder: Path) -> None:
    refused = set()
    for seed in range(60):
        source, read, _, end = play(seed, folder / f"{seed}", KEYED, fresh=False)
        try:
            found = read.publish(end)
        except CascadesUnseenError as error:
            refused.add(str(error))
        else:
            assert in_order(found) == in_order(source.states[read.label(end)]), seed
    assert refused
    assert all("whether the snapshot read a row before or after this change" in each for each in refused)


def test_a_table_without_a_key_has_every_change_from_its_position_on(folder: Path) -> None:
    for seed in range(40):
        source, read, high, end = play(seed, folder / f"{seed}", LOG, fresh=False)
        assert in_order(read.publish(high)) == in_order(source.states[max(end, read.label(high))]), seed


@pytest.mark.found
@pytest.mark.parametrize("again", [(), (1,)])
def test_a_publication_between_two_attempts_at_a_batch_has_what_its_label_says(
    tmp_path: Path, again: tuple[int, ...]
) -> None:
    """Defect 15: a second attempt at a batch removed the changes of foreign keys that the first attempt had buffered, and left its row
    images. A publication then had the images without these changes.
    """
    read, gone = Read(tmp_path, KEYED), Passed(ChangeOrder(2, 0, TIME), foreign_key("up", "CASCADE"), (1,), None)
    rows = [{"id": number, "up": number, "friend": None, "word": ""} for number in (1, 2, 3)]
    read.reading.chunk(1, rows[:2])
    read.take([[gone], [Image(INSERT, 3, {**rows[2], "_place": 1})]], 3, "images")
    for end in again:  # The batch is staged again with another end, and completely.
        read.take([[]], end)
    assert read.label(0) == 3
    assert sorted(row["id"] for row in read.publish(0)) == [2, 3]


def event(before: int, after: int | None, cascade: Cascade, at: int = 1) -> Event:
    new = None if after is None else {"id": after}
    return Event(ChangeOrder(at, 0, TIME), "shop.parent", {"id": before}, new, (cascade,), frozenset({NAME}))


@pytest.mark.parametrize(
    ("events", "is_in_doubt"),
    [
        ([(1, None), (2, 1)], True),  # Rows of parent 2 may be read as rows of parent 1, after parent 1 was deleted.
        ([(2, 1), (1, None)], False),
        ([(1, 2), (2, 3)], False),
        ([(1, 2), (3, 1)], True),
        ([(1, None), (1, None)], False),
    ],
)
def test_only_a_value_that_a_key_update_gives_again_is_in_doubt(
    events: list[tuple[int, int | None]],
    is_in_doubt: bool,
) -> None:
    up = foreign_key("up", "CASCADE")
    assert bool(given_again([event(*each, up, at) for at, each in enumerate(events)])) == is_in_doubt
    friend = foreign_key("friend", "SET NULL")
    others = [event(*each, (up, friend)[at], at) for at, each in enumerate(events)]
    assert not given_again(others), "columns of another foreign key"


def test_values_of_every_type_are_buffered_as_they_are(tmp_path: Path) -> None:
    values = (
        *(1, -(2**63), "ä'\"", b"\x00\xff", Decimal("12.340"), dt.date(2024, 2, 29)),
        *(
            dt.datetime(2024, 2, 29, 1, 2, 3, 4),  # noqa: DTZ001  as MySQL has them
            dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
            dt.timedelta(days=-3, microseconds=7),
            1.5,
            True,
        ),
    )
    names = tuple(f"c{n}" for n in range(len(values)))
    cascade = dataclasses.replace(foreign_key("up", "CASCADE"), columns=names, referenced=names)
    read = Read(tmp_path, KEYED)
    table, _ = read.stage([[Image(INSERT, 1, {"_place": 1})]])
    buffered = read.holds.open[NAME]
    buffer_changes(table, [Passed(ChangeOrder(1, 3, TIME), cascade, values, values[::-1])], buffered, 1)
    ((images, found),) = buffered_events(buffered.cascades, NAME, 0, 1)
    assert images == 1
    assert tuple(found.old.values()) == values
    assert found.new is not None
    assert tuple(found.new.values()) == values[::-1]
    assert found.cascades == (cascade,)


def test_a_batch_counts_once_it_is_complete_and_not_before(tmp_path: Path) -> None:
    read = Read(tmp_path, KEYED)
    change = Passed(ChangeOrder(3, 0, TIME), foreign_key("up", "CASCADE"), (1,), None)
    buffered = read.holds.open[NAME]
    read.take([[change]], 3, "changes")
    assert complete_up_to(buffered.cascades) == -1
    assert len(buffered_events(buffered.cascades, NAME, 0, 9)) == 1
    read.take([[change]], 5)  # The batch has another end.
    assert complete_up_to(buffered.cascades) == 5
    assert len(buffered_events(buffered.cascades, NAME, 0, 9)) == 1
    assert not buffered_events(buffered.cascades, NAME, 3, 9)
    assert not buffered_events(buffered.cascades, NAME, 0, 2)


@pytest.mark.found
def test_attempts_at_one_batch_write_its_changes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 15: each attempt wrote all changes again. A batch that was repeated often exceeded the limit, and its
    files filled the disk.
    """
    monkeypatch.setattr(buffered_cascades, "CHANGES_MAX", 2)
    read = Read(tmp_path, KEYED)
    changes = [[Passed(ChangeOrder(key, 0, TIME), foreign_key("up", "CASCADE"), (key,), None)] for key in (3, 4)]
    buffered = read.holds.open[NAME]
    for end in (4, 4, 5, 6):
        read.take(changes, end, "changes")
        assert len(buffered.cascades.names()) == 1
    read.take(changes[:1], 3)
    assert [event.old["id"] for _, event in buffered_events(buffered.cascades, NAME, 0, 9)] == [3, 4]


@pytest.mark.found
@pytest.mark.parametrize("metadata", [{}, {buffered_cascades.FORMAT_KEY: b"1"}])
def test_buffered_changes_of_another_format_are_refused_by_name(tmp_path: Path, metadata: dict[bytes, bytes]) -> None:
    """Defect 15: files of buffered changes did not name their format, so another version read them as its own."""
    read = Read(tmp_path, KEYED)
    read.take([[Passed(ChangeOrder(3, 0, TIME), foreign_key("up", "CASCADE"), (1,), None)]], 3, "changes")
    buffered = read.holds.open[NAME]
    (name,) = buffered.cascades.names()
    path = buffered.cascades.folder / name
    rows = pq.read_table(path)
    kept = {key: value for key, value in rows.schema.metadata.items() if key != buffered_cascades.FORMAT_KEY}
    pq.write_table(rows.replace_schema_metadata({**kept, **metadata}), path)
    found = metadata.get(buffered_cascades.FORMAT_KEY, b"none").decode()
    expected = rf"shop\.child: .*{name} have the format {found} instead of 2, .* use `sluice snapshot cancel`"
    with pytest.raises(TableError, match=expected):
        buffered_events(buffered.cascades, NAME, 0, 9)


def test_changes_are_bounded_over_all_batches_of_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffered_cascades, "CHANGES_MAX", 5)
    read, key = Read(tmp_path, KEYED), foreign_key("up", "CASCADE")
    for batch in (1, 2):
        read.take([[Passed(ChangeOrder(batch, number, TIME), key, (number,), None) for number in (0, 2)]], batch)
    with pytest.raises(TooManyChangesError, match="values that changed more than 5 times during the snapshot"):
        read.take([[Passed(ChangeOrder(3, number, TIME), key, (number,), None) for number in (0, 2)]], 3)
    buffered = read.holds.open[NAME]
    assert complete_up_to(buffered.cascades) == 2


def test_rows_of_a_publication_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affected_rows, "ROWS_MAX", 5)
    read = Read(tmp_path, KEYED)
    read.reading.chunk(1, [{"id": number, "up": 1, "friend": None, "word": ""} for number in range(6)])
    read.take([[Passed(ChangeOrder(1, 0, TIME), foreign_key("up", "CASCADE"), (1,), None)]], 1)
    with pytest.raises(CascadesUnseenError, match="more than 5 rows and buffered images of the table"):
        read.publish(1)


@pytest.mark.found
@pytest.mark.parametrize("images_max", [3, 2])
def test_each_image_counts_once_for_the_bound_of_a_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images_max: int
) -> None:
    """Defect 15: an image that refers to a changed value was loaded both for the value and for its key, and counted twice."""
    monkeypatch.setattr(affected_rows, "ROWS_MAX", images_max)
    read = Read(tmp_path, KEYED)
    read.reading.chunk(1, [])
    images = [Image(INSERT, 1, {"id": number, "up": 1, "friend": None, "word": "", "_place": 1}) for number in range(3)]
    read.take([[*images], [Passed(ChangeOrder(2, 0, TIME), foreign_key("up", "CASCADE"), (1,), None)]], 2)
    if images_max == len(images):
        assert read.publish(2) == []
    else:
        with pytest.raises(CascadesUnseenError, match="more than 2 rows and buffered images of the table"):
            read.publish(2)


def test_a_disk_that_refuses_names_the_table_and_the_batch_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    read = Read(tmp_path, KEYED)
    change = Passed(ChangeOrder(3, 0, TIME), foreign_key("up", "CASCADE"), (1,), None)
    with monkeypatch.context() as patch:
        patch.setattr(buffered_cascades, "sync", refuses)
        with pytest.raises(
            TableError, match=r"shop\.child: the changes that foreign keys made to the table could not be buffered"
        ):
            read.take([[change]], 3)
    read.take([[change]], 3)
    buffered = read.holds.open[NAME]
    assert len(buffered_events(buffered.cascades, NAME, 0, 9)) == 1
