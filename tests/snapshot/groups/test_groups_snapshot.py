"""Tests how the tables of a group advance together: what happens to one of them changes nothing for the others."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import ConfigurationError, SluiceError, SourceConnectionError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records import files
from sluice.cdc_engine.snapshot import groups
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.groups import ROWS_MAX, TABLES_MAX, run_all
from sluice.cdc_engine.snapshot.read import ChunkFacts, Marks
from sluice.cdc_engine.snapshot.record import SnapshotRecord, SourceEnd, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords, Transition
from sluice.cdc_engine.snapshot.steps import SnapshotSituation
from sluice.cdc_engine.snapshot.work import SizeEstimate, SnapshotDependencies
from sluice.cdc_engine.states import SnapshotState

POSITION = Position(epoch=1, file="binlog.000001", offset=400)
NAMES = tuple(f"shop.t{number}" for number in range(5))


class KilledError(BaseException):
    """The simulated end of the process."""


@dataclasses.dataclass
class Tables:
    """Provides tables whose rows do not change, and the dependencies of a snapshot of them. `on_read` and `on_publish` are called with each
    table that is read or published. `on_update` is called before and after each durable change of a record.
    """

    folder: Path
    names: Sequence[str] = NAMES
    rows: dict[str, int] = dataclasses.field(default_factory=dict)
    keyless: frozenset[str] = frozenset()
    estimates: dict[str, int] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    on_read: Callable[[str], None] = lambda _: None
    on_publish: Callable[[str], None] = lambda _: None
    on_update: Callable[[str], None] = lambda _: None
    after_lock: Callable[[], None] = lambda: None
    lake: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    acts: Counter[str] = dataclasses.field(default_factory=Counter)
    chunks_read: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    held: list[list[str]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = _Reported(self.folder, self)
        for name in self.names:
            self.records.begin(wanted(name, POSITION, 0.0))

    def dependencies(self, **changed: Any) -> SnapshotDependencies:
        return dataclasses.replace(
            SnapshotDependencies(
                records=self.records,
                look=lambda name: SnapshotSituation(
                    begin=POSITION, cursor=POSITION, version=self.versions.get(name, "v1"), epoch=1
                ),
                table=self._table,
                spark_columns=lambda _: (("id", "int"),),
                sizes=self._sizes,
                reader=lambda table, _: _Reader(self, table.name),
                run_lock=self._run_lock,
                publish=self._publish,
                say=lambda _: None,
                pause=lambda _: None,
            ),
            **changed,
        )

    def state(self, name: str) -> SnapshotRecord:
        record = self.records.get(name)
        assert record is not None
        return record

    def states(self) -> list[str]:
        return [str(self.state(name).state) for name in self.names]

    def _table(self, name: str) -> TableVersion:
        database, _, table = name.partition(".")
        columns, key = (Column(name="id", type_code=3),), () if name in self.keyless else ("id",)
        return TableVersion(
            database=database, table=table, columns=columns, key=key, version=self.versions.get(name, "v1")
        )

    def _sizes(self, tables: Sequence[TableVersion]) -> dict[str, SizeEstimate]:
        self.acts["sizes"] += 1
        return {each.name: SizeEstimate(rows=self.estimates.get(each.name, 1)) for each in tables}

    @contextlib.contextmanager
    def _run_lock(self) -> Iterator[None]:
        self.held.append([])
        yield
        self.after_lock()

    def _publish(self, record: SnapshotRecord, table: TableVersion) -> int:
        self.on_publish(record.name)
        self.held[-1].append(record.name)
        read = [json.loads((self.records.chunks(record).folder / name).read_text()) for name in self._files(record)]
        assert sum(read) == record.rows == self.rows.get(record.name, 1)
        self.lake.setdefault(record.name, []).append(table.version)
        return 1

    def _files(self, record: SnapshotRecord) -> list[str]:
        return self.records.chunks(record).names()


class _Reported(SnapshotRecords):
    """Stores records of snapshots, and calls `on_update` of the tables before and after each durable change."""

    def __init__(self, folder: Path, tables: Tables) -> None:
        super().__init__(folder)
        self._tables = tables

    def update(self, name: str, transition: Transition) -> SnapshotRecord:
        self._tables.on_update(name)
        kept = super().update(name, transition)
        self._tables.on_update(name)
        return kept


@dataclasses.dataclass
class _Reader:
    tables: Tables
    name: str

    def shows(self, _position: Position) -> bool:
        return True

    def chunks(self, after: Chunk | None) -> Iterator[Chunk]:
        """Yields chunks of ROWS_MAX + 1 rows."""
        number = after.number if after else 0
        left = self.tables.rows.get(self.name, 1) - number * (ROWS_MAX + 1)
        while left > ROWS_MAX + 1:
            number, left = number + 1, left - ROWS_MAX - 1
            yield Chunk(number=number, after=(str(number - 1),), up_to=(str(number),))
        yield Chunk(number=number + 1, after=(str(number),))

    def read(self, chunk: Chunk, path: Path, marks: Marks | None = None) -> ChunkFacts:  # noqa: ARG002
        self.tables.on_read(self.name)
        self.tables.chunks_read.append((self.name, chunk.number))
        rows = self.tables.rows.get(self.name, 1)
        rows = ROWS_MAX + 1 if chunk.up_to else rows - (chunk.number - 1) * (ROWS_MAX + 1)
        path.write_text(json.dumps(rows))
        return ChunkFacts(rows=rows, bytes=1, received=0, seconds=0.1)

    def end(self) -> SourceEnd:
        return SourceEnd(file=POSITION.file, offset=POSITION.offset)

    def close(self) -> None:
        self.tables.acts["closed"] += 1


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def raises(error: Exception, *names: str) -> Callable[[str], None]:
    def act(name: str) -> None:
        if name in names:
            raise error

    return act


@pytest.mark.scale
def test_small_tables_have_one_query_of_sizes_and_two_holds_of_the_lock_for_each_group(tmp_path: Path) -> None:
    many = Tables(tmp_path, tuple(f"shop.t{number:03}" for number in range(2 * TABLES_MAX)))
    reported = list[str]()
    run_all(many.dependencies(progress=lambda _: reported.append(threading.current_thread().name)), 0.0)
    assert set(many.states()) == {"PUBLISHED"}
    assert (many.acts["sizes"], len(many.held)) == (2, 4)
    assert [len(held) for held in many.held] == [0, TABLES_MAX, 0, TABLES_MAX]
    assert many.acts["closed"] == 2 * TABLES_MAX, "each reader gives its connections back"
    assert set(reported) == {threading.current_thread().name}, "Dagster's context belongs to one thread"


@pytest.mark.scale
def test_the_record_of_a_table_is_written_once_for_each_step_of_its_snapshot(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote the record twice after the only chunk: with the totals, and at the end of the reading."""
    written = Counter[str]()

    def counted(path: Path, content: bytes) -> None:
        written[path.name] += 1
        replace_file(path, content)

    monkeypatch.setattr(files, "replace_file", counted)
    seen = list[tuple[str, int]]()
    run_all(tables.dependencies(progress=lambda record: seen.append((str(record.state), record.chunks))), 0.0)
    assert list(written.values()) == [len(("began", "read", "published"))] * len(NAMES)
    assert Counter(seen) == {("READING", 0): 5, ("READING", 1): 5, ("PUBLISHED", 1): 5}
    assert {tables.state(name).rows for name in NAMES} == {1}


def test_a_large_table_and_one_without_a_key_are_read_alone_after_the_small_ones(tmp_path: Path) -> None:
    tables = Tables(tmp_path, keyless=frozenset({NAMES[0]}), estimates={NAMES[1]: ROWS_MAX + 1})
    run_all(tables.dependencies(), 0.0)
    assert set(tables.states()) == {"PUBLISHED"}
    assert [held for held in tables.held if held] == [list(NAMES[2:]), [NAMES[0]], [NAMES[1]]]


def test_a_table_that_is_larger_than_its_estimate_leaves_its_group_and_is_read_on(tmp_path: Path) -> None:
    tables = Tables(tmp_path, rows={NAMES[0]: 3 * ROWS_MAX})
    run_all(tables.dependencies(), 0.0)
    assert set(tables.states()) == {"PUBLISHED"}
    assert [held for held in tables.held if held] == [list(NAMES[1:]), [NAMES[0]]]
    assert Counter(tables.chunks_read) == Counter(
        [(NAMES[0], 1), (NAMES[0], 2), (NAMES[0], 3), *((each, 1) for each in NAMES[1:])]
    )


@pytest.mark.parametrize("stage", ["on_read", "on_publish"])
def test_a_table_that_fails_neither_fails_nor_delays_the_others_of_its_group(tables: Tables, stage: str) -> None:
    setattr(tables, stage, raises(SourceConnectionError("the source does not answer"), NAMES[1]))
    with pytest.raises(SourceConnectionError):
        run_all(tables.dependencies(), 0.0)
    assert tables.states().count("PUBLISHED") == len(NAMES) - 1
    assert (tables.state(NAMES[1]).reason, tables.state(NAMES[2]).reason) == ("the source does not answer", "")
    setattr(tables, stage, lambda _: None)
    run_all(tables.dependencies(), 0.0)
    assert {name: len(made) for name, made in tables.lake.items()} == dict.fromkeys(NAMES, 1)


def test_sizes_that_the_source_does_not_report_are_noted_for_each_table_of_the_snapshot(tables: Tables) -> None:
    def sizes(_: object) -> Any:
        raise SourceConnectionError("the source does not answer")

    with pytest.raises(SourceConnectionError):
        run_all(tables.dependencies(sizes=sizes), 0.0)
    assert [tables.state(name).reason for name in NAMES] == ["the source does not answer"] * len(NAMES)
    assert set(tables.states()) == {"WANTED"}


def test_a_table_that_is_altered_while_its_group_is_read_is_read_again_and_the_others_are_not(tables: Tables) -> None:
    def alter(name: str) -> None:
        if name == NAMES[2]:
            tables.versions[name] = "v2"

    tables.on_read = alter
    run_all(tables.dependencies(), 0.0)
    assert tables.lake == {name: ["v2" if name == NAMES[2] else "v1"] for name in NAMES}
    assert Counter(name for name, _ in tables.chunks_read) == Counter([*NAMES, NAMES[2]])


def test_tables_that_are_paused_or_canceled_while_their_group_is_read_are_not_published(tables: Tables) -> None:
    acts: dict[str, Transition] = {
        NAMES[0]: lambda now: now.with_pause(paused=True),
        NAMES[3]: lambda now: now.canceled(),
    }

    def act(name: str) -> None:
        if name in acts and tables.state(name).state == SnapshotState.READING:
            SnapshotRecords.update(tables.records, name, acts[name])

    tables.on_read = act
    run_all(tables.dependencies(), 0.0)
    assert tables.states() == ["READING", "PUBLISHED", "PUBLISHED", "CANCELED", "PUBLISHED"]
    assert NAMES[0] not in tables.lake
    assert NAMES[3] not in tables.lake
    tables.records.update(NAMES[0], lambda now: now.retried())
    run_all(tables.dependencies(), 0.0)
    assert len(tables.lake[NAMES[0]]) == 1


@pytest.mark.parametrize("calls", range(1, 40, 5))
def test_what_a_group_read_under_another_conf_is_not_published(tables: Tables, calls: int) -> None:
    """conf/ changes during the run. Tables that were published before the change stay published. No table is published after the change."""
    requested, after = [0], list[str]()

    def changed() -> str:
        requested[0] += 1
        return "conf/ has changed" if requested[0] >= calls else ""

    tables.on_publish = lambda name: after.append(name) if requested[0] >= calls else None
    run_all(tables.dependencies(must_end=changed, readers=1), 0.0)
    assert not after
    tables.versions = dict.fromkeys(NAMES, "v2")
    run_all(tables.dependencies(), 0.0)
    assert set(tables.states()) == {"PUBLISHED"}
    assert all(len(made) == 1 for made in tables.lake.values())


def test_a_lock_that_is_lost_in_the_middle_of_a_group_ends_its_publication(tables: Tables) -> None:
    """Tables that are already committed count as published. The next run publishes only the other tables."""
    lost = SluiceError("this run does not hold the run lock any more")
    tables.on_publish = raises(lost, *NAMES[2:])

    def after_lock() -> None:
        if tables.held[-1]:
            raise lost

    tables.after_lock = after_lock
    with pytest.raises(SluiceError, match="does not hold the run lock"):
        run_all(tables.dependencies(), 0.0)
    assert tables.states() == ["PUBLISHED", "PUBLISHED", "READ", "READ", "READ"]
    tables.on_publish, tables.after_lock = lambda _: None, lambda: None
    run_all(tables.dependencies(), 0.0)
    assert {name: len(made) for name, made in tables.lake.items()} == dict.fromkeys(NAMES, 1)
    assert Counter(name for name, _ in tables.chunks_read) == Counter(NAMES)


def test_a_group_releases_the_lock_for_merges_after_some_time(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "PUBLISH_SECONDS_MAX", 0.0)
    run_all(tables.dependencies(), 0.0)
    assert [held for held in tables.held if held] == [[name] for name in NAMES]


@pytest.mark.parametrize("at", range(1, 40, 2))
def test_fault_a_group_whose_process_ends_at_any_durable_change_continues(tmp_path: Path, at: int) -> None:
    """If the process ends between the commit of a table and the update of its record, the next run publishes this table again. No other
    table is published again.
    """
    tables, changes = Tables(tmp_path), [0]

    def killed(_: str) -> None:
        changes[0] += 1
        if changes[0] == at:
            raise KilledError

    tables.on_update = killed
    with contextlib.suppress(KilledError):
        run_all(tables.dependencies(readers=1), 0.0)
    assert changes[0] >= at
    tables.on_update = lambda _: None
    run_all(tables.dependencies(), 0.0)
    assert set(tables.states()) == {"PUBLISHED"}
    assert sorted(tables.lake) == list(NAMES)
    assert sum(len(made) - 1 for made in tables.lake.values()) <= 1


def test_an_error_of_one_table_s_progress_ends_the_work_on_this_table_only(tables: Tables) -> None:
    def progress(record: SnapshotRecord) -> None:
        if record.name == NAMES[1] and record.state == SnapshotState.READING:
            raise SluiceError(f"the report of {record.name} failed")

    with pytest.raises(SluiceError, match="report of"):
        run_all(tables.dependencies(progress=progress), 0.0)
    assert tables.states().count("PUBLISHED") == len(NAMES) - 1


def test_a_table_that_is_canceled_during_the_wait_for_the_lock_does_not_begin(tables: Tables) -> None:
    canceled, held = list[str](), tables.dependencies().run_lock

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        if not canceled:
            canceled.append(NAMES[2])
            tables.records.update(NAMES[2], lambda now: now.canceled())
        with held():
            yield

    run_all(tables.dependencies(run_lock=lock), 0.0)
    assert tables.states() == ["PUBLISHED", "PUBLISHED", "CANCELED", "PUBLISHED", "PUBLISHED"]


def test_a_table_does_not_begin_at_a_cursor_that_moved_back_during_the_wait_for_the_lock(tables: Tables) -> None:
    """The table's changes are buffered only from a position after the moved cursor. If the snapshot began at the cursor, the changes
    between the two positions would be lost.
    """
    cursor = [POSITION]
    tables.records.update(NAMES[0], lambda now: now.again("truncated", buffered_after=POSITION.order_key))

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        cursor[0] = dataclasses.replace(POSITION, offset=POSITION.offset - 100)
        yield

    def look(_name: str) -> SnapshotSituation:
        return SnapshotSituation(begin=cursor[0], cursor=cursor[0], version="v1", epoch=cursor[0].epoch)

    run_all(tables.dependencies(run_lock=lock, look=look), 0.0)
    assert tables.state(NAMES[0]).state == SnapshotState.WANTED


def test_tables_begin_again_after_the_lock_was_lost_in_the_middle_of_their_beginning(tables: Tables) -> None:
    locks: list[int] = []

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        locks.append(1)
        yield
        if len(locks) == 1:
            raise SluiceError("the lock was lost")

    with pytest.raises(SluiceError, match="was lost"):
        run_all(tables.dependencies(run_lock=lock), 0.0)
    assert set(tables.states()) == {"WANTED"}


def test_a_table_that_is_canceled_and_then_fails_does_not_end_the_work_on_later_groups(tmp_path: Path) -> None:
    many = Tables(tmp_path, tuple(f"shop.t{number:02}" for number in range(TABLES_MAX + 10)))

    def read(name: str) -> None:
        if name == "shop.t01":
            many.records.update(name, lambda now: now.canceled())
            raise ConfigurationError("grant SELECT")

    many.on_read = read
    with pytest.raises(ConfigurationError):
        run_all(many.dependencies(), 0.0)
    assert many.states().count("PUBLISHED") == TABLES_MAX + 9
