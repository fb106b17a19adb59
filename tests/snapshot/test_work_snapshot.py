"""Tests the work of a snapshot on a table in memory: whatever happens between two steps, the lake equals the source at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.contracts import Column, StoppedTable, TableVersion
from sluice.cdc_engine.errors import ActRefusedError, SourceConnectionError, TableChangedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot import work
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.groups import advance, run_all
from sluice.cdc_engine.snapshot.read import ChunkFacts, Marks
from sluice.cdc_engine.snapshot.record import SnapshotRecord, SourceEnd, progress, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords, Transition
from sluice.cdc_engine.snapshot.steps import SnapshotSituation, SnapshotStep, next_step
from sluice.cdc_engine.snapshot.work import (
    RAISED_TRIES_MAX,
    SizeEstimate,
    SnapshotDependencies,
    SnapshotRaisedError,
)
from sluice.cdc_engine.states import SnapshotState, TableState
from tests.fix_ledgers import home_of

NAME = "shop.orders"
TABLE = TableVersion(
    database="shop", table="orders", columns=(Column(name="id", type_code=3),), key=("id",), version="v1"
)
KEYS, CHUNK_KEYS, POSITION_BYTES = 12, 3, 32


class CrashError(Exception):
    """The simulated end of the process."""


@dataclasses.dataclass
class World:
    """Simulates a table, its binlog, the runs, and the lake. `noise` is called between any two calls of the work on the snapshot."""

    folder: Path
    rows: dict[int, int] = dataclasses.field(default_factory=dict)
    log: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    merged: int = 0
    buffered: dict[int, tuple[str, int, int]] = dataclasses.field(default_factory=dict)
    lake: dict[int, int] | None = None
    version: str = "v1"
    epoch: int = 1
    stop: StoppedTable | None = None
    noise: Callable[[], None] = lambda: None
    published: int = 0
    locked: bool = False
    chunk_reads: list[Path] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = _Noisy(self.folder, self)

    def change(self, kind: str, key: int) -> None:
        """Makes one transaction, if it is possible."""
        if kind == "truncate":
            self.rows.clear()
        elif kind == "delete":
            if self.rows.pop(key, None) is None:
                return
        else:
            self.rows[key] = len(self.log)
        self.log.append((kind, key, len(self.log)))

    def merge(self, count: int) -> None:
        """Merges the next `count` changes, as `run_batch` does. Like a real merge, may crash. Does nothing while another run holds the run
        lock.
        """
        if self.locked:
            return
        with self._run_lock():
            record = self.records.get(NAME)
            buffered = record is not None and record.is_open
            until = min(len(self.log), self.merged + count)
            for number in range(self.merged, until):
                if buffered:
                    self._hold(number)
                else:
                    self.lake = _applied(self.lake or {}, *self.log[number])
            self.merged = until

    def _hold(self, number: int) -> None:
        kind, key, value = self.log[number]
        record = self.records.get(NAME)
        if record is None or self.key(number) <= record.buffered_after:
            return
        if kind == "truncate":
            self.records.update(NAME, lambda now: now.again("truncated", buffered_after=self.key(number)))
        else:
            self.buffered[number] = (kind, key, value)

    def position(self, number: int) -> Position:
        return Position(epoch=self.epoch, file="binlog.000001", offset=4 + POSITION_BYTES * number)

    def key(self, number: int) -> int:
        """Returns the order key of a change: the key of the position at which it ends."""
        return self.position(number + 1).order_key

    def dependencies(self) -> SnapshotDependencies:
        return SnapshotDependencies(
            records=self.records,
            look=self._look,
            table=lambda _: dataclasses.replace(TABLE, version=self.version),
            spark_columns=lambda _: (("id", "int"),),
            sizes=lambda tables: {each.name: SizeEstimate(rows=len(self.rows)) for each in tables},
            reader=lambda *_: _Reader(self),
            run_lock=self._run_lock,
            publish=self._publish,
            say=lambda _: None,
            readers=1,
            pause=lambda _: None,
        )

    @contextlib.contextmanager
    def _run_lock(self) -> Iterator[None]:
        self.locked = True
        try:
            yield
        finally:
            self.locked = False

    def _look(self, _name: str) -> SnapshotSituation:
        self.noise()
        cursor = self.position(self.merged)
        return SnapshotSituation(begin=cursor, cursor=cursor, version=self.version, epoch=cursor.epoch, stop=self.stop)

    def _publish(self, record: SnapshotRecord, _table: TableVersion) -> int:
        rows: dict[int, int] = {}
        chunks = self.records.chunks(record)
        for name in chunks.names():
            content = chunks.store().read(name) if chunks.url else (chunks.folder / name).read_bytes()
            rows |= {int(key): value for key, value in json.loads(content or b"").items()}
        for number, change in sorted(self.buffered.items()):
            if self.key(number) > record.buffered_after:
                rows = _applied(rows, *change)
        self.lake, self.published = rows, self.published + 1
        self.noise()
        return self.merged


class _Noisy(SnapshotRecords):
    """Records of snapshots that call `world.noise` before and after each durable change."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder)
        self._world = world

    def update(self, name: str, transition: Transition) -> SnapshotRecord:
        noise, self._world.noise = self._world.noise, lambda: None
        try:
            noise()
            kept = super().update(name, transition)
            noise()
        finally:
            self._world.noise = noise
        return kept


class _Reader:
    """Implements `work.TableReader` over the rows of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def shows(self, _position: Position) -> bool:
        return True

    def chunks(self, after: Chunk | None) -> Iterator[Chunk]:
        number, low = (after.number, int(after.up_to[0])) if after else (0, -1)
        while len(above := sorted(key for key in self._world.rows if key > low)) >= CHUNK_KEYS:
            self._world.noise()
            number, bound = number + 1, above[CHUNK_KEYS - 1]
            yield Chunk(number=number, after=(str(low),), up_to=(str(bound),))
            low = bound
        yield Chunk(number=number + 1, after=(str(low),))

    def read(self, chunk: Chunk, path: Path, marks: Marks | None = None) -> ChunkFacts:  # noqa: ARG002
        self._world.noise()
        low, high = int(chunk.after[0]), int(chunk.up_to[0]) if chunk.up_to else KEYS
        rows = {key: value for key, value in self._world.rows.items() if low < key <= high}
        path.write_text(json.dumps(rows))
        self._world.chunk_reads.append(path)
        self._world.noise()
        return ChunkFacts(rows=len(rows), bytes=path.stat().st_size, received=0, seconds=0.1)

    def end(self) -> SourceEnd:
        self._world.noise()
        position = self._world.position(len(self._world.log))
        return SourceEnd(file=position.file, offset=position.offset)

    def close(self) -> None:
        """Does nothing, because nothing is open."""


def _applied(rows: dict[int, int], kind: str, key: int, value: int) -> dict[int, int]:
    if kind == "truncate":
        return {}
    return {other: kept for other, kept in rows.items() if other != key} | ({} if kind == "delete" else {key: value})


@pytest.fixture(params=["folder", "store"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Creates five rows that are not in the stream, and requests a snapshot."""
    made = World(home_of(request.param, tmp_path), rows=dict.fromkeys(range(5), -1))
    made.records.begin(wanted(NAME, made.position(0), 0.0))
    return made


def state(world: World) -> SnapshotRecord:
    record = world.records.get(NAME)
    assert record is not None
    return record


CHANGES = st.tuples(st.sampled_from(["put", "put", "put", "delete", "delete", "truncate"]), st.integers(0, KEYS - 1))


EVENTS = st.lists(
    st.one_of(
        st.just(("nothing", 0)), st.tuples(st.just("merge"), st.integers(1, 3)), st.just(("crash", 0)), CHANGES, CHANGES
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=st.lists(CHANGES, max_size=12), share=st.integers(0, 100), events=EVENTS)
def test_a_snapshot_is_right_whatever_happens_between_its_steps(
    tmp_path_factory: pytest.TempPathFactory, first: list[tuple[str, int]], share: int, events: list[tuple[str, int]]
) -> None:
    play(World(tmp_path_factory.mktemp("world")), first, share, events)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=st.lists(CHANGES, max_size=12), share=st.integers(0, 100), events=EVENTS)
def test_a_snapshot_in_a_store_is_right_whatever_happens_between_its_steps_s3(
    tmp_path_factory: pytest.TempPathFactory, first: list[tuple[str, int]], share: int, events: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("world")
    play(World(home_of("store", folder)), first, share, events)
    assert not list(folder.glob("store/**/*.parquet")), "what is published is swept"


def play(world: World, first: list[tuple[str, int]], share: int, events: list[tuple[str, int]]) -> None:
    for change in first:
        world.change(*change)
    before = len(world.log) * share // 100
    world.merged = before  # These changes are from before the stream, so no run merged them.
    world.records.begin(wanted(NAME, world.position(before), 0.0))
    coming = iter(events)

    def noise() -> None:
        kind, number = next(coming, ("nothing", 0))
        if kind == "merge":
            world.merge(number)
        elif kind == "crash":
            raise CrashError
        elif kind != "nothing":
            world.change(kind, number)

    world.noise = noise
    for _ in range(200):
        with contextlib.suppress(CrashError):
            advance(NAME, world.dependencies())
        if state(world).state == SnapshotState.PUBLISHED:
            break
        with contextlib.suppress(CrashError):
            world.merge(2)
    world.noise = lambda: None
    world.merge(1000)
    assert state(world).state == SnapshotState.PUBLISHED
    assert world.lake == world.rows


def test_a_snapshot_of_a_quiet_table_is_published_at_once(world: World) -> None:
    assert advance(NAME, world.dependencies()).step == SnapshotStep.PUBLISH
    assert world.lake == world.rows
    assert (state(world).rows, state(world).chunks) == (5, 2)


def test_a_snapshot_waits_until_the_stream_is_past_its_last_row(world: World) -> None:
    world.change("put", 7)
    assert advance(NAME, world.dependencies()).step == SnapshotStep.WAIT
    assert world.lake is None
    world.merge(1)
    assert advance(NAME, world.dependencies()).step == SnapshotStep.PUBLISH
    assert world.lake == world.rows


def test_a_chunk_that_is_whole_is_not_read_again_by_a_snapshot(world: World) -> None:
    dependencies = dataclasses.replace(world.dependencies(), progress=_crash_at_chunk(1))
    with pytest.raises(CrashError):
        advance(NAME, dependencies)
    assert advance(NAME, world.dependencies()).step == SnapshotStep.PUBLISH
    assert [path.name[:6] for path in world.chunk_reads] == ["000001", "000002"]


def _crash_at_chunk(chunks: int) -> Callable[[SnapshotRecord], None]:
    def progressed(record: SnapshotRecord) -> None:
        if record.chunks == chunks:
            raise CrashError

    return progressed


def test_a_paused_snapshot_continues_after_its_last_chunk(world: World) -> None:
    def pause(record: SnapshotRecord) -> None:
        if record.chunks == 1 and not record.paused:
            world.records.update(NAME, lambda now: now.with_pause(paused=True))

    assert advance(NAME, dataclasses.replace(world.dependencies(), progress=pause)).step == SnapshotStep.WAIT
    assert advance(NAME, world.dependencies()).step == SnapshotStep.NOTHING
    world.records.update(NAME, lambda now: now.retried())
    assert advance(NAME, world.dependencies()).step == SnapshotStep.PUBLISH
    assert [path.name[:6] for path in world.chunk_reads] == ["000001", "000002"]


def test_after_a_change_of_the_source_the_rows_of_a_snapshot_are_read_again(world: World) -> None:
    world.change("put", 7)
    advance(NAME, world.dependencies())
    world.epoch = 2
    world.merge(1)
    assert advance(NAME, world.dependencies()).step == SnapshotStep.PUBLISH
    assert state(world).restarts == 1


def test_a_table_that_stops_while_it_is_read_fails_its_snapshot_by_name(world: World) -> None:
    world.change("put", 7)
    advance(NAME, world.dependencies())
    world.stop = StoppedTable(
        database="shop", table="orders", state=TableState.DDL_UNSUPPORTED, reason="why", position=world.position(0)
    )
    assert advance(NAME, world.dependencies()).step == SnapshotStep.NOTHING
    assert state(world).state == SnapshotState.FAILED
    assert "DDL_UNSUPPORTED: why" in state(world).reason


def test_a_table_that_changed_on_the_server_is_left_to_the_stream_by_its_snapshot(world: World) -> None:
    def changed(*_: Any) -> Any:
        raise TableChangedError("no such column")

    reader: Any = _Reader(world)
    reader.read = changed
    dependencies = dataclasses.replace(world.dependencies(), reader=lambda *_: reader)
    assert advance(NAME, dependencies).step == SnapshotStep.WAIT
    assert state(world).state == SnapshotState.READING
    world.version = "v2"
    assert advance(NAME, world.dependencies()).step == SnapshotStep.PUBLISH


@pytest.mark.parametrize("error", [SourceConnectionError, *work.PASSING])
def test_one_table_that_cannot_be_read_now_waits_and_does_not_delay_others(world: World, error: Any) -> None:
    world.records.begin(wanted("shop.broken", world.position(0), 0.0))
    real = world.dependencies()

    def reader(table: TableVersion, where: str) -> Any:
        if table.table == "broken":
            raise error("the source does not answer")
        return real.reader(table, where)

    dependencies = dataclasses.replace(
        real, reader=reader, table=lambda name: dataclasses.replace(TABLE, table=name.partition(".")[2])
    )
    with pytest.raises(error):
        run_all(dependencies, 0.0)
    assert state(world).state == SnapshotState.PUBLISHED
    assert [each.name for each in world.records.all() if each.has_work] == ["shop.broken"]


@pytest.mark.found
@pytest.mark.parametrize(
    ("stage", "wrong"),
    [
        *(("look", KeyError("_sluice_operation")), ("table", ValueError("odd")), ("spark_columns", AssertionError())),
        *(("sizes", TypeError("none")), ("chunks", IndexError()), ("read", RecursionError("deep"))),
        ("publish", KeyError("_sluice_operation")),
    ],
)
def test_a_table_whose_snapshot_raises_fails_by_name_and_the_others_are_published(
    world: World, stage: str, wrong: Exception
) -> None:
    """Defect 25: if the snapshot of a table raised an error, it was repeated forever without naming the table. Other tables waited."""
    world.records.begin(wanted("shop.broken", world.position(0), 0.0))
    real = world.dependencies()

    def maybe(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            named = (each for one in given for each in (one if isinstance(one, list) else [one]))
            if any(str(getattr(each, "table", each)).endswith("broken") for each in named):
                raise wrong
            return act(*given)

        return call

    def reader(table: TableVersion, where: str) -> Any:
        made = real.reader(table, where)
        if table.table == "broken":
            setattr(made, stage, lambda *_: maybe(lambda _: None)("broken"))
        return made

    dependencies = dataclasses.replace(
        real, reader=reader, table=lambda name: dataclasses.replace(TABLE, table=name.partition(".")[2], version="v1")
    )
    if stage in {"look", "table", "spark_columns", "sizes", "publish"}:
        changed: Any = {stage: maybe(getattr(dependencies, stage))}
        dependencies = dataclasses.replace(dependencies, **changed)
    for _ in range(RAISED_TRIES_MAX):
        with pytest.raises(SnapshotRaisedError, match=r"rows of shop\.broken could not be read or published"):
            run_all(dependencies, 0.0)
        assert state(world).state == SnapshotState.PUBLISHED
    broken = world.records.get("shop.broken")
    assert broken is not None
    assert broken.state == SnapshotState.FAILED
    assert type(wrong).__name__ in broken.reason
    assert run_all(dependencies, 0.0) == {}, "no run fails for it any more"


def test_an_open_snapshot_cannot_be_begun_again(world: World) -> None:
    with pytest.raises(ActRefusedError, match="in progress"):
        world.records.begin(wanted(NAME, None, 0.0))
    world.records.update(NAME, lambda now: now.canceled())
    world.records.begin(wanted(NAME, None, 0.0))


def test_the_record_of_a_snapshot_is_read_as_it_was_kept(world: World) -> None:
    advance(NAME, world.dependencies())
    record = state(world)
    assert SnapshotRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_snapshot_that_waits_is_not_given_up_for_changes_of_its_table(world: World) -> None:
    waiting = wanted(NAME, None, 0.0)
    for _ in range(20):
        waiting = waiting.again("its key was changed")
    assert (waiting.restarts, waiting.generation) == (0, 21)
    begun = waiting.began(world.position(0), version="v", key=("id",), columns=(), rows_expected=0, now=1.0)
    again = begun.again("its key was changed")
    assert again.restarts == 1
    assert again.failed("too often").retried().restarts == 0, "an operator has looked at it"


def test_the_progress_of_a_snapshot_says_no_more_than_is_known(world: World) -> None:
    record = dataclasses.replace(
        state(world), state=SnapshotState.READING, reading_at=100.0, rows=50, rows_expected=200
    )
    made = progress(record, 110.0)
    assert (made.percent, made.per_second, made.seconds_left) == (25.0, 5.0, 30.0)
    assert progress(dataclasses.replace(record, rows=300), 110.0).percent == 99.0
    assert progress(state(world), 110.0).percent is None


def test_nothing_is_done_for_a_snapshot_before_the_engine_has_begun(world: World) -> None:
    there = SnapshotSituation(begin=None, cursor=None, version="", epoch=1)
    assert next_step(state(world), there).step == SnapshotStep.WAIT
    known = SnapshotSituation(begin=world.position(0), cursor=world.position(0), version="", epoch=1)
    assert next_step(state(world), known).step == SnapshotStep.WAIT


@pytest.mark.parametrize("calls", range(1, 9))
def test_what_was_read_under_another_conf_is_neither_read_on_nor_published(world: World, calls: int) -> None:
    """`calls` is the number of the first check that finds a change of conf/. The next run reads the table again, with its new version."""
    requested = [0]

    def changed() -> str:
        requested[0] += 1
        return "destinations/shop.yaml in conf/ has changed" if requested[0] >= calls else ""

    dependencies = dataclasses.replace(world.dependencies(), must_end=changed)
    assert run_all(dependencies, 60.0)[NAME].step == SnapshotStep.WAIT
    assert world.published == 0
    reads = len(world.chunk_reads)
    assert "the next run continues" in advance(NAME, dependencies).why
    assert len(world.chunk_reads) == reads
    world.version = "v1-masked"
    run_all(world.dependencies(), 0.0)
    assert (state(world).state, state(world).version) == (SnapshotState.PUBLISHED, "v1-masked")


def test_a_query_that_the_server_refuses_again_and_again_fails_the_snapshot() -> None:
    noted, now = work._changed_on_the_server("no such column"), wanted(NAME, None, 0.0)
    for _ in range(work.CHANGED_TRIES_MAX - 1):
        now = noted(now)
        assert now.state == SnapshotState.WANTED
    assert noted(now).state == SnapshotState.FAILED
    assert noted(now).reason == "no such column"
