"""Tests which changes by foreign keys a batch buffers for tables that a snapshot reads, and in which order the batch writes them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import Cascade, CascadeEvents
from sluice.spark_jobs.batch import run_batch
from sluice.spark_jobs.cascades import derive
from sluice.spark_jobs.cascades import files as cascade_files
from sluice.spark_jobs.cascades.derive import carried_out
from sluice.spark_jobs.cascades.play import ChangeOrder, Event, Passed, Play, UnderivableChanges
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.snapshot import buffered_cascades, table_buffering
from sluice.spark_jobs.snapshot.buffered_cascades import buffered_events
from sluice.spark_jobs.snapshot.table_buffering import Buffering
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.snapshot.test_apply_cascades_snapshot import KEYED, NAME, TIME, foreign_key
from tests.spark.snapshot.test_publish_snapshot import Holding
from tests.spark.staged import DELETE, INSERT, Changes, Image, Truncate, stage


def key_of(child: str, parent: str, on_delete: str = "CASCADE", on_update: str = "CASCADE", **changed: Any) -> Cascade:
    made = foreign_key(f"{parent}_id", "CASCADE", name=f"{child}_{parent}")
    names: Any = {"child": (child,), "parent": (parent,)}  # The names are without a database.
    return dataclasses.replace(made, **names, on_delete=on_delete, on_update=on_update, **changed)


def played(
    *cascades: Cascade, buffered: Mapping[str, int], live: Sequence[str], new: int | None = None
) -> tuple[Play, dict[str, UnderivableChanges]]:
    """Applies an event that deletes the row 1 of the table `g`, or changes its key to `new`. Returns the `Play`, and the tables with
    changes that cannot be derived.
    """
    merged = [each for each in cascades if each.child_name in live and each.child_name not in buffered]
    play = Play(merged, dict.fromkeys(live, 0), {}, buffered=buffered)
    after = None if new is None else {"id": new}
    everything = frozenset({*live, *buffered})
    play.run({}, [Event(ChangeOrder(5, 0, TIME), "g", {"id": 1}, after, cascades, everything)])
    return play, play.lost


def test_what_reaches_a_table_that_is_read_is_passed_to_it() -> None:
    own = key_of("c", "g")
    play, lost = played(own, buffered={"c": 4}, live=())
    assert play.passed == {"c": [Passed(ChangeOrder(5, 0, TIME), own, (1,), None)]}
    assert not lost
    assert not play.errors
    assert not played(own, buffered={"c": 5}, live=())[0].passed, "it is buffered already"


def test_a_table_below_one_that_is_read_too_waits_for_it() -> None:
    play, lost = played(key_of("c", "g"), key_of("d", "c"), key_of("e", "d"), buffered=dict.fromkeys("cde", 0), live=())
    assert set(play.passed) == {"c"}
    assert {name: each.through for name, each in lost.items()} == {"d": {"c"}, "e": {"d"}}
    _, lost = played(key_of("c", "g", "SET NULL"), key_of("d", "c"), buffered={"c": 0, "d": 0}, live=())
    assert not lost, "a foreign key that sets NULL changes no value that the one below refers to"


def test_a_table_that_refers_to_itself_is_read_again_only_where_rows_go() -> None:
    itself = dataclasses.replace(key_of("g", "g"), on_update="")
    _, lost = played(itself, buffered={"g": 0}, live=())
    assert {name: each.through for name, each in lost.items()} == {"g": frozenset()}
    play, lost = played(dataclasses.replace(itself, on_delete="SET NULL"), buffered={"g": 0}, live=())
    assert set(play.passed) == {"g"}
    assert not lost


def test_a_table_that_is_merged_below_one_that_is_read_stops_by_name() -> None:
    play, lost = played(key_of("c", "g"), key_of("d", "c"), buffered={"c": 0}, live=("d",))
    assert "a snapshot of c is in progress" in play.errors["d"].reason
    assert set(lost) == {"c"}, "so that it is not published before the batch says that d stops"


def test_a_batch_that_is_derived_again_after_a_table_was_buffered_refuses_the_same_tables_below_it() -> None:
    family = key_of("c", "g"), key_of("x", "c"), key_of("d", "x"), key_of("m", "x")
    play, lost = played(*family, buffered={"c": 5, "x": 5, "d": 0}, live=("m",))
    assert not play.passed
    assert set(lost) == {"d"}
    assert "a snapshot of x is in progress" in play.errors["m"].reason


def test_each_change_reaches_the_tables_below_one_that_cannot_be_followed() -> None:
    odd = key_of("m", "g", unlike=True, doubt="texts differ"), key_of("n", "m"), key_of("d", "n")
    play = Play(odd[:2], {"m": 0, "n": 0}, {}, buffered={"d": 5})
    everything = frozenset({"m", "n", "d"})
    play.run({}, [Event(ChangeOrder(at, 0, TIME), "g", {"id": at}, None, odd, everything) for at in (5, 6)])
    assert set(play.errors) == {"m", "n"}
    assert set(play.lost) == {"d"}


@pytest.mark.parametrize(
    ("changed", "new", "is_lost"),
    [
        ({"unlike": True, "doubt": "texts differ"}, None, True),
        ({"key": ("g_id",)}, 2, True),
        ({"key": ("g_id",)}, None, False),
    ],
)
def test_what_cannot_be_played_over_rows_that_are_read_has_them_read_again(
    changed: dict[str, Any], new: int | None, is_lost: bool
) -> None:
    play, lost = played(key_of("c", "g", **changed), buffered={"c": 0}, live=(), new=new)
    assert bool(lost) == is_lost
    assert bool(play.passed["c"]) != is_lost


@dataclasses.dataclass
class Batches:
    """Makes batches of a child table whose rows a snapshot reads. In each batch, the first transaction deletes a parent row."""

    folder: Path

    def __post_init__(self) -> None:
        self.holds = Holding(self.folder / "held")
        self.holds.begin(NAME)

    def batch(self, first: int, last: int, *segments: Any) -> StagedBatch:
        images = [Image(INSERT, last, {"id": last, "up": 1, "friend": None, "word": ""})]
        batch = read_staged_batch(stage(self.folder, {NAME: [*segments, Changes(KEYED, images)]}, delivery=last))
        events = batch.directory / "cascade.parquet"
        columns: dict[str, Any] = {
            "_sluice_operation": pa.array([DELETE], pa.int8()),
            "_sluice_order_key": pa.array([first], pa.int64()),
            "_sluice_commit_time": pa.array([TIME], pa.timestamp("us", "UTC")),
            "_sluice_sequence_number": pa.array([7], pa.int64()),
            "id": pa.array([first], pa.int32()),
        }
        pq.write_table(pa.table(columns), events)
        sequence_numbers = batch.directory / "places"
        sequence_numbers.write_bytes(np.array([9], "<i8").tobytes())
        cascades = CascadeEvents(
            parent=("shop", "parent"),
            referenced=("id",),
            file=events,
            rows=1,
            cascades=(foreign_key("up", "CASCADE"),),
            live=(("shop", "child"),),
        )
        table = dataclasses.replace(batch.tables[0], positions=sequence_numbers)
        return dataclasses.replace(batch, cascades=(cascades,), tables=(table,))

    def take(self, batch: StagedBatch) -> Buffering:
        targets = {NAME: TableTarget(path=str(self.folder / "lake"))}
        buffering = Buffering(batch, targets, BY_HAND, self.holds, lambda _: None)
        left = dataclasses.replace(batch, tables=())
        carried_out(None, left, targets, {}, buffering.complete(), buffering.buffer_live)
        return buffering

    def values(self) -> list[int]:
        buffered = self.holds.open[NAME]
        return [found.old["id"] for _, found in buffered_events(buffered.cascades, NAME, -1, 99)]

    def images(self) -> int:
        return self.holds.open[NAME].files.rows()


def test_a_batch_that_is_repeated_is_buffered_once_whatever_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise KilledError

    made = Batches(tmp_path)
    batch = made.batch(3, 4)
    for module, name in ((buffered_cascades, "sync"), (buffered_cascades, "write_rows"), (cascade_files, "keep")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(KilledError):
                made.take(batch)
        assert made.holds.open[NAME].after == -1
        assert not (batch.directory / "derived" / "derived.json").exists()
    for _ in range(2):
        made.take(batch)
        assert (made.values(), made.images()) == ([3], 1)
    assert json.loads((batch.directory / "derived" / "derived.json").read_text())["tables"] == {}
    made.take(made.batch(5, 6))
    assert (made.values(), made.images()) == ([3, 5], 2)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("a defect")])
def test_a_table_whose_changes_cannot_be_buffered_delays_those_that_foreign_keys_bind_it_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuses(*_: Any) -> None:
        raise error

    made = Batches(tmp_path)
    batch = made.batch(3, 4)
    with monkeypatch.context() as patch:
        patch.setattr(table_buffering, "buffer_changes", refuses)
        buffering = made.take(batch)
    assert "changes of the table could not be buffered" in str(buffering.errors[NAME])
    assert not (batch.directory / "derived" / "derived.json").exists(), "a repeated run would find no changes"
    assert not made.take(batch).errors
    assert (made.values(), made.images()) == ([3], 1)


def test_a_table_that_must_be_read_again_is_recorded_before_any_table_is_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may separate the two writes. If the buffering came first, the table above could be published, and the repeated batch would
    find nothing for the table below it.
    """
    made = Batches(tmp_path)
    made.holds.begin(below := "shop.below")
    batch = made.batch(3, 4)
    both = frozenset({NAME, below})
    batch = dataclasses.replace(
        batch,
        tables=(*batch.tables, dataclasses.replace(batch.tables[0], table="below")),
        cascades=(dataclasses.replace(batch.cascades[0], live=(("shop", "child"), ("shop", "below"))),),
    )
    buffering = Buffering(batch, dict.fromkeys(both, TableTarget(path="lake")), BY_HAND, made.holds, lambda _: None)
    seen: list[int] = []
    monkeypatch.setattr(table_buffering, "buffer_table", lambda *_: seen.append(made.holds.open[below].after))
    buffering.buffer_live({}, {below: UnderivableChanges("a cause", frozenset({NAME}))})
    assert seen == [4, 4]


def test_more_changes_than_a_publication_can_play_have_the_rows_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered_cascades, "CHANGES_MAX", 1)
    made = Batches(tmp_path)
    made.take(made.batch(1, 2))
    made.take(made.batch(3, 4))
    why, through = made.holds.lost[NAME]
    assert "foreign keys of the table refer to values that changed more than 1 times" in why
    assert not through
    assert (made.holds.open[NAME].after, made.values(), made.images()) == (4, [], 0)
    made.take(made.batch(5, 6))
    assert (made.values(), made.images()) == ([5], 1)


def test_a_batch_that_also_changes_the_table_as_a_whole_has_the_rows_read_again_after_it(tmp_path: Path) -> None:
    made = Batches(tmp_path)
    made.take(made.batch(3, 6, Truncate(4)))
    assert "altered or truncated" in made.holds.lost[NAME][0]
    assert (made.holds.open[NAME].after, made.values(), made.images()) == (6, [], 0)


@pytest.mark.found
def test_a_table_that_was_refused_when_changes_were_derived_and_is_buffered_now_is_read_again(tmp_path: Path) -> None:
    """Defect 15: a run refused the table and stored a manifest of changes by foreign keys, without changes for this table. The next run
    used this manifest and buffered the table without the changes.
    """
    made = Batches(tmp_path)
    batch = made.batch(3, 4)
    without = dataclasses.replace(batch, tables=())  # The target of the table was not found, so the run left it out.
    buffering = Buffering(without, {}, BY_HAND, made.holds, lambda _: None)
    carried_out(None, without, {}, {}, buffering.complete(), buffering.buffer_live)
    made.take(batch)
    assert "the table has stopped" in made.holds.lost[NAME][0]
    assert "snapshot start" not in made.holds.lost[NAME][0], "its snapshot is open"


@pytest.mark.found
def test_an_exception_that_concerns_only_a_buffered_table_is_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 15: an unexpected exception concerned only a buffered table. The batch was repeated forever, and no message contained the
    cause.
    """

    def raising(*_: object) -> None:
        raise KeyError("the cause")

    monkeypatch.setattr(derive, "events_of", raising)
    made = Batches(tmp_path)
    batch = made.batch(3, 4)
    buffering = Buffering(batch, {NAME: TableTarget(path=str(tmp_path / "lake"))}, BY_HAND, made.holds, lambda _: None)
    left = dataclasses.replace(batch, tables=())
    run_batch._carried_out(left, {}, {}, [], BY_HAND, buffering)
    error = buffering.errors[NAME]
    assert isinstance(error, TableError)
    assert error.own
    assert "the cause" in error.reason


def test_a_table_that_waits_for_another_one_is_not_reported_under_its_name() -> None:
    events = CascadeEvents(
        parent=("shop", "parent"),
        referenced=("id",),
        file=Path("events"),
        rows=1,
        cascades=(),
        live=(("shop", "child"), ("shop", "other")),
    )
    cause = derive._RaisedError(["shop.child", "shop.other"], TableError("shop.child", "no space left", own=False))
    batch: Any = SimpleNamespace(tables=(), cascades=(events,))
    errors = derive._refused(batch, cause, ["shop.child", "shop.other"])
    assert {name: error.table for name, error in errors.items()} == {name: name for name in errors}
    assert errors["shop.child"].reason == "no space left"
    assert len(errors) == 2
