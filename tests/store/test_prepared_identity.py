"""Tests that both stores of prepared XA transactions give a commit the rows of its own XA PREPARE, wherever the stream begins again."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation
from sluice.cdc_engine.errors import BinlogFormatError, NotSharedError, StagingError
from sluice.cdc_engine.ports import Content, PreparedTransactions
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.prepared import PreparedFiles, forget_prepared
from sluice.cdc_engine.store.prepared_copies import CopyName, PreparedCopies
from sluice.object_stores.folder import StoreFolder

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
    """One event of the source's binlog. `rows` are the rows of an XA PREPARE, or the rows that a commit must give."""

    kind: str
    name: str
    rows: bytes


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Draws histories with two names that are used again and again, but never prepared twice at once."""
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


# After an event, either nothing happens, or the positions are acked, or the stream begins again. A tuple is a new beginning: which share of
# the unacked positions remains, whether the epoch is new, and whether the engine was restarted.
PERILS = st.one_of(st.none(), st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), st.just("ack"))


class Reader:
    """Reads a history through a store of prepared transactions. `positions` has the position at which each event ended when it was last
    read.
    """

    def __init__(
        self, history: list[Event], make: Callable[[Callable[[], Position | None]], PreparedTransactions]
    ) -> None:
        self.history, self._make = history, make
        self.positions = [FIRST]
        self.epoch, self.acked = 1, 0
        self.records = self._made()

    def _made(self) -> PreparedTransactions:
        return self._make(lambda: self.positions[self.acked])

    def read(self) -> None:
        at = len(self.positions) - 1
        event = self.history[at]
        position = dataclasses.replace(FIRST, epoch=self.epoch, offset=FIRST.offset * (at + 2))
        if event.kind == "prepare":
            self.records.begin()
            for byte in event.rows:
                self.records.record(bytes([byte]))
            self.records.prepare(event.name, position.order_key)
        elif event.kind == "commit":
            assert content_of(self.records.commit(event.name, position.order_key)) == event.rows
        else:
            self.records.roll_back(event.name)
        self.positions.append(position)

    def meet(self, peril: object) -> None:
        if peril == "ack":
            self.acked = len(self.positions) - 1
        elif isinstance(peril, tuple):
            share, new_epoch, restart = peril
            del self.positions[self.acked + 1 + round(share * (len(self.positions) - 1 - self.acked)) :]
            self.epoch += new_epoch
            if restart:
                self.records = self._made()
            self.records.rewind(self.positions[-1])


Made = Callable[[Callable[[], Position | None]], PreparedTransactions]


def in_memory(_: Path) -> Made:
    memory = MemoryPrepared()
    return lambda _: memory


def in_files(root: Path) -> Made:
    return lambda acked: PreparedFiles(root, acked)


def over_hosts(root: Path) -> Made:
    """Makes each restart happen on another host. The first restart on a host finds an empty folder there. Later restarts find the folder as
    the host left it.
    """
    tokens, store = (
        itertools.count(1),
        LedgerLocation(destination="shop", directory=root, staging=(root / "store").as_uri()),
    )

    def made(acked: Callable[[], Position | None]) -> PreparedFiles:
        token = next(tokens)
        return PreparedFiles(root / "abac"[token % 4], acked, PreparedCopies(store, token))

    return made


@settings(max_examples=400)
@given(histories(), st.lists(PERILS, max_size=30), st.sampled_from([in_memory, in_files, over_hosts]))
def test_identity_each_commit_gives_the_rows_of_its_prepare(
    history: list[Event], perils: list[object], make: Callable[[Path], Made]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(history, make(Path(folder)))
        waiting = iter(perils)
        while len(reader.positions) <= len(history):
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
    with pytest.raises(BinlogFormatError, match="incomplete or was changed"):
        kept(tmp_path).commit("x", FIRST.order_key + 9)
    path.write_bytes(whole)
    assert content_of(kept(tmp_path).commit("x", FIRST.order_key + 9)) == b"rows of a transaction"


def test_fault_a_transaction_without_rows_is_not_a_record_without_content(tmp_path: Path) -> None:
    prepared(tmp_path, b"")
    assert content_of(kept(tmp_path).commit("x", FIRST.order_key + 9)) == b""


def test_fault_a_file_of_another_form_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "0123.prepared").write_bytes(b"")
    with pytest.raises(StagingError, match=r"0123\.prepared is not a file that this version of Sluice wrote"):
        kept(tmp_path)


def stored(root: Path) -> LedgerLocation:
    return LedgerLocation(destination="shop", directory=root / "shop", kind="memory", staging=(root / "store").as_uri())


def on_host(root: Path, host: str, token: int) -> PreparedFiles:
    return PreparedFiles(root / host, lambda: FIRST, PreparedCopies(stored(root), token))


def prepare(records: PreparedFiles, name: str, rows: bytes, order_key: int) -> None:
    records.begin()
    records.record(rows)
    records.prepare(name, order_key)


def test_ha_what_a_crash_leaves_before_the_copy_was_never_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position of the XA PREPARE was not acked, so it arrives again. Until then, no part of the transaction may be in the store."""
    key = FIRST.order_key + 1
    monkeypatch.setattr(PreparedCopies, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(on_host(tmp_path, "one", 1), "x", b"torn off", key)
    monkeypatch.undo()
    assert on_host(tmp_path, "one", 2).commit("x", key + 1) is None


def test_ha_a_holder_from_before_takes_nothing_away_however_late(tmp_path: Path) -> None:
    """The old host was suspended while another one took over and prepared the same transaction again. Then it continues."""
    key = FIRST.order_key + 1
    first = on_host(tmp_path, "one", 1)
    prepare(first, "x", b"rows", key)
    second = on_host(tmp_path, "two", 2)
    second.rewind(FIRST)
    prepare(second, "x", b"rows", key)
    first.rewind(FIRST)
    assert content_of(on_host(tmp_path, "three", 3).commit("x", key + 1)) == b"rows"


def test_ha_of_two_records_of_a_name_the_later_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process was killed after it had written the new record, and before it removed the old one."""
    key = FIRST.order_key + 1
    first = on_host(tmp_path, "one", 1)
    prepare(first, "x", b"old", key)
    monkeypatch.setattr(PreparedCopies, "remove", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(first, "x", b"new", key + 5)
    monkeypatch.undo()
    # The second host finds that the transaction was committed, and gets the same commit again.
    for host, token in (("one", 2), ("two", 3)):
        assert content_of(on_host(tmp_path, host, token).commit("x", key + 9)) == b"new"


def test_ha_nothing_is_left_of_transactions_that_are_decided_or_forgotten(tmp_path: Path) -> None:
    key = FIRST.order_key + 1
    records, folder = (
        on_host(tmp_path, "one", 1),
        StoreFolder(f"{(tmp_path / 'store').as_uri()}/_sluice_prepared/shop", {}),
    )
    for name in "abc":
        prepare(records, name, name.encode(), key)
    records.roll_back("a")
    records.commit("b", key + 1)
    assert len(folder.sizes()) == 3, "the events of b and c, and that b is committed"
    again = PreparedFiles(
        tmp_path / "two", lambda: dataclasses.replace(FIRST, offset=1 << 30), PreparedCopies(stored(tmp_path), 2)
    )
    again.commit("c", 1 << 62)
    assert sorted(name.rpartition(".")[2] for name in folder.sizes()) == ["committed", "prepared"]
    forget_prepared(DestinationDir.of(dataclasses.replace(stored(tmp_path), kind="sql", url="sqlite://")))
    assert folder.sizes() == {}


def test_ha_a_file_of_another_version_is_refused_at_the_start(tmp_path: Path) -> None:
    PreparedCopies(stored(tmp_path), 1).mark(CopyName("d", 1, 2))
    StoreFolder(f"{(tmp_path / 'store').as_uri()}/_sluice_prepared/shop", {}).write("d.1.2.3.prepared9", b"")
    with pytest.raises(
        NotSharedError, match=r"has the file d\.1\.2\.3\.prepared9, which this version of Sluice did not write"
    ):
        on_host(tmp_path, "one", 2)
