"""Tests the limits of one read or write of a file, and of blocks that are joined."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.cdc_engine.store import record_file, timeline
from sluice.cdc_engine.store.files import record
from sluice.cdc_engine.store.files.mark import Mark
from tests.fix_blocks import Source

CALL_BYTES = 7
CALLS = ("preadv", "pwrite", "pread", "pwritev")


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the sizes in bytes of all calls that read from or write to files at an offset."""
    sizes: list[int] = []

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def counting(descriptor: int, what: Any, *rest: Any) -> Any:
            views = what if isinstance(what, list) else [what]
            sizes.append(sum(each if isinstance(each, int) else len(each) for each in views))
            return call(descriptor, what, *rest)

        return counting

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(name))
    return sizes


def test_a_record_is_written_and_read_in_calls_of_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: list[int]
) -> None:
    monkeypatch.setattr(record, "CALL_BYTES_MAX", CALL_BYTES)
    array, text = np.arange(100, dtype=np.int64), b"{}"
    with (tmp_path / "record").open("w+b") as file:
        at = record.Where(file.fileno(), 0)
        head = record.write_record(at, record.BLOCK, text, [array])
        assert max(largest) == CALL_BYTES
        largest.clear()
        found = np.empty_like(array)
        record.read_arrays(at, head, text, [found])
    assert max(largest) == CALL_BYTES
    assert found.tolist() == array.tolist()


def test_a_record_is_verified_in_reads_of_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: list[int]
) -> None:
    with (tmp_path / "record").open("w+b") as file:
        at = record.Where(file.fileno(), 0)
        head = record.write_record(at, record.BLOCK, b"{}", [np.arange(100, dtype=np.int64)])
        largest.clear()
        monkeypatch.setattr(record, "CHECK_BYTES", CALL_BYTES)
        record.verify(at, head)
    assert max(largest) == CALL_BYTES


def test_recorded_events_are_verified_in_reads_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record_file.Recording(tmp_path / "new")
    recording.add(b"x" * 100)
    recording.keep_as(tmp_path / "kept")
    pieces: list[int] = []
    crc32 = zlib.crc32

    def counting(piece: bytes, seed: int = 0) -> int:
        pieces.append(len(piece))
        return crc32(piece, seed)

    monkeypatch.setattr(record_file, "CHECK_BYTES", CALL_BYTES)
    monkeypatch.setattr(zlib, "crc32", counting)
    assert record_file.verified(tmp_path / "kept").size == 100
    assert max(pieces) == CALL_BYTES


def test_small_blocks_are_joined_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    source, start = Source(), Mark()
    entries = list[timeline.Entry]()
    for block in [source.block([1]) for _ in range(6)]:
        entries.append(timeline.entry_in_memory(block, start, start))
        start = entries[-1].end
    monkeypatch.setattr(timeline, "JOINED_BYTES_MAX", entries[1].end.bytes)
    joined = timeline.with_small_joined(entries, Mark())
    assert [each.end.transactions - each.start.transactions for each in joined] == [2, 2, 2]
    assert [each.end for each in joined] == [each.end for each in entries[1::2]]
