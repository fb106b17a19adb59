"""Tests XA transactions in a consumer's own stream: each commit gets the rows of its own XA PREPARE, wherever this stream and the
destination's stream are when it begins.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.errors import StagingError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.own_prepared import OwnPrepared
from sluice.cdc_engine.store.prepared import PreparedFiles
from tests.store.test_prepared_identity import FIRST, Event, Made, Reader, content_of, histories, in_files, over_hosts


def position_after(count: int, epoch: int = 1) -> Position:
    return dataclasses.replace(FIRST, epoch=epoch, offset=FIRST.offset * (count + 1))


def take(prepared: OwnPrepared, event: Event, key: int) -> bytes | None:
    """Applies one event. Returns the rows of a commit, and None for other events."""
    if event.kind == "prepare":
        prepared.begin()
        prepared.record(event.rows)
        prepared.prepare(event.name, key)
    elif event.kind == "commit":
        return content_of(prepared.commit(event.name, key))
    else:
        prepared.roll_back(event.name)
    return None


@pytest.mark.parametrize("keeper", [in_files, over_hosts])
@given(history=histories(), begins=st.floats(0, 1), live=st.floats(0, 1), goes_over=st.booleans())
def test_identity_a_second_stream_gives_each_commit_its_own_rows(
    keeper: Callable[[Path], Made], history: list[Event], begins: float, live: float, *, goes_over: bool
) -> None:
    begin_at, live_at = round(begins * len(history)), round(live * len(history))
    epoch = 2 if goes_over else 1
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(history, keeper(Path(folder)))
        for number in range(live_at):
            reader.read()
            reader.acked = min(number + 1, begin_at)  # The position of a consumer counts.
        records, begin = reader.records, position_after(begin_at)
        assert isinstance(records, PreparedFiles)
        other = OwnPrepared(lambda name: records.recorded_before(name, begin))
        for at in range(live_at, begin_at):
            take(other, history[at], position_after(at + 1, epoch).order_key)
        other.begin_stream()
        other.rewind(dataclasses.replace(FIRST, epoch=2, file="", offset=4) if goes_over else begin)
        for at in range(begin_at, len(history)):
            found = take(other, history[at], position_after(at + 1, epoch).order_key)
            assert found == (history[at].rows if history[at].kind == "commit" else None)


def test_identity_a_record_that_is_committed_while_another_stream_reads_it_is_read_whole(tmp_path: Path) -> None:
    records = PreparedFiles(tmp_path, lambda: None)
    records.begin()
    records.record(b"rows")
    records.prepare("a", position_after(1).order_key)
    held = records.recorded_before("a", position_after(1))
    assert content_of(records.commit("a", position_after(2).order_key)) == b"rows"
    assert content_of(held) == b"rows"
    again = records.recorded_before("a", position_after(1))
    (kept,) = tmp_path.glob("*.committed")
    kept.unlink()
    assert content_of(again) == b"rows"
    with pytest.raises(StagingError, match="is missing; Sluice looks for the record again"):
        records.recorded_before("a", position_after(1))
