"""What both keepers of prepared XA transactions promise: a commit gives the rows of its own prepare, wherever the stream begins anew."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_engine.binlog.events.recorded import MemoryPrepared
from cdc_engine.errors import BinlogFormatError, StagingError
from cdc_engine.ports import Content, PreparedTransactions
from cdc_engine.position import Position
from cdc_engine.store.prepared import PreparedFiles

FIRST = Position(epoch=1, file="binlog.000001", offset=160)


def content_of(content: Content | None) -> bytes | None:
    if content is None:
        return None
    read = bytearray(content.size + 1)
    count = 0
    while more := content.read_into(memoryview(read)[count:]):
        count += more
    assert count == content.size
    return bytes(read[:count])


@dataclasses.dataclass(frozen=True)
class Event:
    """One event of the source's binlog. `rows`: of a prepare; of a commit those it must give."""

    kind: str
    name: str
    rows: bytes


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Two names, used again and again; never prepared twice at once."""
    undecided: dict[str, bytes] = {}
    events = []
    for number in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from("ab"))
        if name not in undecided:
            undecided[name] = f"{name}{number}".encode() * draw(st.integers(0, 3))
            events.append(Event("prepare", name, undecided[name]))
        else:
            events.append(Event(draw(st.sampled_from(["commit", "commit", "roll back"])), name, undecided.pop(name)))
    return events


# After an event: nothing, the stream begins again (how far back of what is not acked, in a new epoch, after a restart), or an ack.
PERILS = st.one_of(st.none(), st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), st.just("ack"))


class Reader:
    """Reads a history through a keeper of prepared transactions. `places`: where each event ended when it was last read."""

    def __init__(self, history: list[Event], make: Callable[[Callable[[], Position]], PreparedTransactions]) -> None:
        self.history, self._make = history, make
        self.places = [FIRST]
        self.epoch, self.acked = 1, 0
        self.records = self._made()

    def _made(self) -> PreparedTransactions:
        return self._make(lambda: self.places[self.acked])

    def read(self) -> None:
        at = len(self.places) - 1
        event = self.history[at]
        place = dataclasses.replace(FIRST, epoch=self.epoch, offset=FIRST.offset * (at + 2))
        if event.kind == "prepare":
            self.records.begin()
            for byte in event.rows:
                self.records.record(bytes([byte]))
            self.records.prepare(event.name, place.order_key)
        elif event.kind == "commit":
            assert content_of(self.records.commit(event.name, place.order_key)) == event.rows
        else:
            self.records.roll_back(event.name)
        self.places.append(place)

    def meet(self, peril: object) -> None:
        if peril == "ack":
            self.acked = len(self.places) - 1
        elif isinstance(peril, tuple):
            share, new_epoch, restart = peril
            del self.places[self.acked + 1 + round(share * (len(self.places) - 1 - self.acked)) :]
            self.epoch += new_epoch
            if restart:
                self.records = self._made()
            self.records.rewind(self.places[-1])


@settings(max_examples=300)
@given(histories(), st.lists(PERILS, max_size=30), st.booleans())
def test_identity_each_commit_gives_the_rows_of_its_prepare(
    history: list[Event], perils: list[object], in_files: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = MemoryPrepared()
        reader = Reader(history, (lambda acked: PreparedFiles(Path(folder), acked)) if in_files else (lambda _: memory))
        waiting = iter(perils)
        while len(reader.places) <= len(history):
            reader.read()
            reader.meet(next(waiting, None))


def kept(folder: Path) -> PreparedFiles:
    return PreparedFiles(folder, lambda: FIRST)


def prepared(folder: Path, rows: bytes = b"rows of a transaction") -> Path:
    records = kept(folder)
    records.begin()
    records.record(rows)
    records.prepare("x", FIRST.order_key + 1)
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("damage", ["empty", "torn", "changed", "longer"])
def test_fault_a_record_that_is_not_whole_stops_with_a_sentence(tmp_path: Path, damage: str) -> None:
    path = prepared(tmp_path)
    whole = path.read_bytes()
    changed = {
        "empty": b"",
        "torn": whole[:-20],
        "changed": b"R" + whole[1:],
        "longer": whole + b"\0",
    }
    path.write_bytes(changed[damage])
    with pytest.raises(BinlogFormatError, match="torn or was changed"):
        kept(tmp_path).commit("x", FIRST.order_key + 9)
    path.write_bytes(whole)
    assert content_of(kept(tmp_path).commit("x", FIRST.order_key + 9)) == b"rows of a transaction"


def test_fault_a_transaction_without_rows_is_not_a_record_without_content(tmp_path: Path) -> None:
    prepared(tmp_path, b"")
    assert content_of(kept(tmp_path).commit("x", FIRST.order_key + 9)) == b""


def test_fault_a_file_of_another_form_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "0123.prepared").write_bytes(b"")
    with pytest.raises(StagingError, match="no record of this version"):
        kept(tmp_path)
