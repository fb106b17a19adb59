"""Tests a transaction larger than the ring: it is kept on disk, delivered as a whole, with one block in memory at a time, and no file is
left.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import Batch
from sluice.cdc_engine.errors import StagingError, StoreDamagedError
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import Source, numbers_in

MANY = 1 << 40
RING_EVENTS = 100
TRANSACTION_BYTES = int(os.environ.get("SLUICE_TEST_SPILL_BYTES", str(2 << 30)))
RSS_BYTES_MAX = 700 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spill"


@pytest.fixture
def store(directory: Path) -> MemoryEventStore:
    return MemoryEventStore(directory, events_max=RING_EVENTS)


def put_huge(store: MemoryEventStore, source: Source, *, ring_sizes: int = 10) -> None:
    """Puts one transaction that is `ring_sizes` times as large as the ring, and does not end it."""
    for _ in range(ring_sizes):
        store.put(source.block([], open_events=RING_EVENTS))


def open_files_of(directory: Path) -> list[str]:
    """Returns the files of the directory that this process has open, including removed files. Other files do not count, because objects of
    earlier tests may still have them open.
    """
    held: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            held.append(str(descriptor.readlink()))
    return [each for each in held if each.startswith(str(directory))]


def test_a_transaction_ten_times_the_ring_is_delivered_whole(store: MemoryEventStore, directory: Path) -> None:
    source = Source()
    store.put(source.block([3]))
    before = store.get(MANY, MANY)
    assert before.end is not None
    store.ack(before.end)
    put_huge(store, source)
    metrics = store.metrics()
    assert metrics.fill_events == RING_EVENTS
    assert metrics.spilled_bytes == 9 * RING_EVENTS * 16
    assert store.get(MANY, MANY).empty
    store.put(source.block([1], open_events=2))
    batch = store.get(1, 1)
    assert numbers_in(batch) == list(range(3, 3 + 10 * RING_EVENTS + 1))
    assert numbers_in(batch) == list(range(3, 3 + 10 * RING_EVENTS + 1))  # A second attempt reads the same.
    assert batch.end is not None
    store.ack(batch.end)
    assert store.metrics().spilled_bytes == 0
    assert store.metrics().fill_events == 2
    assert list(directory.iterdir()) == []


def test_a_spilled_transaction_can_be_handed_out_again(store: MemoryEventStore) -> None:
    source = Source()
    put_huge(store, source)
    store.put(source.block([0]))
    first = numbers_in(store.get(MANY, MANY))
    store.rollback()
    assert numbers_in(store.get(MANY, MANY)) == first == list(range(10 * RING_EVENTS))


def test_of_spilled_blocks_only_the_last_read_is_kept(store: MemoryEventStore) -> None:
    source = Source()
    put_huge(store, source)
    store.put(source.block([0]))
    first, second = store.get(MANY, MANY).slices[5:7]
    kept = weakref.ref(first.block)
    assert first.block is kept()
    assert second.block.event_count == RING_EVENTS
    assert kept() is None
    assert first.changes == ()


def test_a_lost_connection_removes_the_spilled_part(store: MemoryEventStore, directory: Path) -> None:
    source = Source()
    put_huge(store, source)
    assert len(list(directory.iterdir())) == 1
    store.drop_open_transaction()
    assert list(directory.iterdir()) == []
    assert store.metrics().put_sequence == 0
    put_huge(store, again := Source())
    store.put(again.block([0]))
    assert numbers_in(store.get(MANY, MANY)) == list(range(10 * RING_EVENTS))


def test_a_batch_that_is_being_read_outlives_a_clear(store: MemoryEventStore, directory: Path) -> None:
    source = Source()
    put_huge(store, source)
    store.put(source.block([0]))
    batch: Batch | None = store.get(MANY, MANY)
    assert batch is not None
    store.clear()
    assert list(directory.iterdir()) == []
    assert numbers_in(batch) == list(range(10 * RING_EVENTS))
    assert len(open_files_of(directory)) == 1
    del batch
    gc.collect()
    assert open_files_of(directory) == []


def test_what_a_dead_process_left_is_removed(directory: Path) -> None:
    directory.mkdir()
    (directory / "123-1.blocks").write_bytes(b"x")
    MemoryEventStore(directory)
    assert list(directory.iterdir()) == []


def test_a_full_disk_while_spilling_says_what_to_do_and_changes_nothing(
    store: MemoryEventStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    put_huge(store, source, ring_sizes=3)
    before, size = store.metrics(), next(directory.iterdir()).stat().st_size
    write = os.pwritev

    def half(descriptor: int, views: list[memoryview], offset: int) -> int:
        write(descriptor, views[:2], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    block = source.block([], open_events=RING_EVENTS)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", half)
        with pytest.raises(
            StagingError, match=r"No space left on device.*free space in that folder or raise ring\.bytes_max"
        ):
            store.put(block)
    assert store.metrics() == before
    assert next(directory.iterdir()).stat().st_size == size
    store.put(block)
    store.put(source.block([0]))
    assert numbers_in(store.get(MANY, MANY)) == list(range(4 * RING_EVENTS))


def test_a_spill_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = MemoryEventStore(tmp_path / "file" / "spill", events_max=RING_EVENTS)
    with pytest.raises(StagingError, match="could not be kept in"):
        put_huge(store, Source())


def test_a_truncated_spill_file_is_an_error_and_no_short_batch(store: MemoryEventStore, directory: Path) -> None:
    source = Source()
    put_huge(store, source)
    store.put(source.block([0]))
    batch = store.get(MANY, MANY)
    os.truncate(next(directory.iterdir()), 5000)
    with pytest.raises(StoreDamagedError, match=r"-1\.blocks cannot be read at byte \d+"):
        numbers_in(batch)


def test_a_spill_file_that_was_changed_is_refused_by_name(store: MemoryEventStore, directory: Path) -> None:
    source = Source()
    put_huge(store, source)
    store.put(source.block([0]))
    batch, path = store.get(MANY, MANY), next(directory.iterdir())
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        StoreDamagedError, match=rf"{path.name} cannot be read at byte \d+ \(the checksum of the record"
    ):
        numbers_in(batch)


HUGE = """
import json, sys
from pathlib import Path
import numpy as np
from sluice.cdc_engine.limits import READ_BUFFER_BYTES
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import Source
EVENT_BYTES = 8192
total = int(sys.argv[2])
store, source = MemoryEventStore(Path(sys.argv[1])), Source()
events = READ_BUFFER_BYTES // EVENT_BYTES
for _ in range(total // READ_BUFFER_BYTES):
    store.put(source.block([], open_events=events, size=EVENT_BYTES))
spilled = store.metrics().spilled_bytes
store.put(source.block([0]))
batch = store.get(1, 1)
checksum, count = 0, 0
for each in batch.slices:
    block = each.block
    numbers = block.buffer.reshape(events, -1)[:, 3:11].copy().view(np.int64)
    checksum, count = checksum + int(numbers.sum()), count + block.event_count
    del block
store.ack(batch.end)
# getrusage would count what pytest had in memory before exec
peak = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
print(json.dumps({"spilled": spilled, "bytes": batch.byte_count, "count": count, "checksum": checksum,
                  "rss": peak * 1024}))
"""


def test_memory_stays_bounded_for_a_transaction_of_two_gigabytes(directory: Path) -> None:
    """SLUICE_TEST_SPILL_BYTES makes the transaction smaller if the disk is small."""
    result = subprocess.run(
        [sys.executable, "-c", HUGE, str(directory), str(TRANSACTION_BYTES)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    found = json.loads(result.stdout)
    count = found["count"]
    assert found["bytes"] == count * 8192 == TRANSACTION_BYTES // (4 << 20) * (4 << 20)
    assert found["checksum"] == count * (count - 1) // 2
    assert found["spilled"] > found["bytes"] - (128 << 20)
    assert found["rss"] < RSS_BYTES_MAX
    assert list(directory.iterdir()) == []
