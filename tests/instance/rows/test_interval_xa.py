"""Tests intervals of the binlog that begin or end between the XA PREPARE and the XA COMMIT of a transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import ActRefusedError, PositionLostError
from sluice.cdc_engine.instance.rows import interval, work
from sluice.cdc_engine.instance.rows.interval import BinlogInterval
from sluice.cdc_engine.instance.rows.reading import IntervalReader, PreparedBefore
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.instance.rows.work import BackfillReading
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.parser.start_position import DumpStart, StartChoice
from sluice.cdc_engine.ports import PreparedTransactions
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.settings import SourceConfig
from tests.fix_ledgers import FileLedger
from tests.parser.scan.event_factory import START, EventFactory, NoHistory, feed, scanner
from tests.parser.scan.test_xa import committed, prepared

SECOND_US = 1_000_000
CONFIG = DestinationConfig(name="shop", source=SourceConfig(user="root"))


class Files:
    """A binlog with an XA PREPARE, a transaction, and the XA COMMIT. The binlog ends at the offset `to`, which tests change."""

    def __init__(self) -> None:
        make = EventFactory()
        self._events = [make.transaction(19)]
        self.begin = make.offset
        self._events.append(prepared(make, "a", [b"1"], "other"))
        self.prepared = make.offset
        self._events.append(make.transaction(20))
        self.between = make.offset
        self._events.append(committed(make, "a"))
        self.end = self.to = make.offset
        self.bytes_read, self.logs = 0, ()

    def bound(self, epoch: int) -> None:
        """Returns None, because the interval ends at the end of the files."""

    def reach(self, is_enough: Any) -> None:
        pass

    def blocks(self, start: DumpStart, _schemas: Any, _wanted: Any, records: PreparedTransactions) -> Iterator[Block]:
        scan, at = scanner(start=start.position, prepared=records), START.offset
        for events in self._events:
            at += sum(map(len, events))
            if start.position.offset < at <= self.to:
                yield from feed(scan, events)


def at(offset: int) -> Position:
    return dataclasses.replace(START, offset=offset)


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Files, int, dict[int, int]], BackfillReading]:
    """Returns a function that makes the reading of an interval from the offset `begin`. `earlier` maps a number of seconds before the
    requested time to the offset that a search for this time finds.
    """

    def make(files: Files, begin: int, earlier: dict[int, int]) -> BackfillReading:
        def by_time(_: Any, time_us: int) -> StartChoice:
            back = 7200 - time_us // SECOND_US
            if back not in earlier:
                raise PositionLostError("purged")
            return StartChoice(file=START.file, offset=earlier[back])

        monkeypatch.setattr(work, "files_for", lambda *_: files)
        monkeypatch.setattr(work, "records_of", lambda *_: [])
        monkeypatch.setattr(work, "schemas_of", lambda *_: NoHistory())
        monkeypatch.setattr(work, "tables_of", lambda *_: ("shop.orders",))
        monkeypatch.setattr(work, "facts_of", lambda *_, **__: ())
        monkeypatch.setattr(interval, "reach_back", lambda *_: None)
        monkeypatch.setattr(interval, "choice_at", by_time)
        ledger = Ledger(ledger_id="0123456789ab", cursor=at(files.end), epoch=START.epoch)
        FileLedger(tmp_path).update(lambda _: ledger)
        bounds = dict.fromkeys(("end", "read_to", "cursor"), at(files.end))
        found = BinlogInterval(begin=at(begin), files=files, **bounds)  # type: ignore[arg-type]
        requested = RequestedInterval(from_us=7200 * SECOND_US)
        return BackfillReading(CONFIG, tmp_path, requested, tmp_path / "rows", now_us=1 << 62, find=lambda *_: found)

    return make


@pytest.mark.found
def test_an_interval_between_an_xa_prepare_and_its_commit_is_read_from_an_earlier_position(
    reading: Callable[[Files, int, dict[int, int]], BackfillReading],
) -> None:
    """Defect 1061: a backfill or repair failed if an XA transaction was prepared before its interval and committed in it, which is usual on
    a source with XA. The message advised to set the destination's position, which would lose changes.
    """
    for earlier in ({60: START.offset}, {60: Files().prepared, 3600: START.offset}):
        files = Files()
        made = reading(files, files.prepared, earlier)
        made.read()
        assert (made.interval.begin.offset, made.read_to.offset) == (START.offset, files.end)
        assert made.interval.end == at(files.end)
        assert len(made.staged) == 1
    for earlier in ({}, {60: files.prepared}, {60: files.prepared, 3600: files.prepared}):
        made = reading(files, files.prepared, earlier)
        with pytest.raises(ActRefusedError, match=r"prepared long before .* start the operation again later") as error:
            made.read()
        assert "set the position" not in str(error.value)


@pytest.mark.found
def test_an_interval_that_begins_before_the_requested_time_is_read_from_before_its_begin(
    reading: Callable[[Files, int, dict[int, int]], BackfillReading],
) -> None:
    """Defect 1061: the reading of a past state began a minute before the requested time. But the interval of a past state begins at the
    end of a version, which was earlier.
    """
    files = Files()
    made = reading(files, files.prepared, {60: files.between, 3600: files.between, 5060: START.offset})
    begin = dataclasses.replace(made.interval.begin, time_us=2200 * SECOND_US)
    made.interval = dataclasses.replace(made.interval, begin=begin)
    made.read()
    assert (made.interval.begin.offset, made.read_to.offset) == (START.offset, files.end)


@pytest.mark.found
def test_an_xa_transaction_that_is_prepared_when_the_first_reading_ends_is_committed_in_the_second(
    reading: Callable[[Files, int, dict[int, int]], BackfillReading],
) -> None:
    """Defect 1061: a backfill or repair reads further under the run lock. This second reading failed if an XA transaction was prepared in
    the first reading.
    """
    files = Files()
    made = reading(files, START.offset, {})
    files.to = files.between
    made.read()
    assert made.read_to.offset == files.between
    files.to = files.end
    assert made.catch_up()[1] == at(files.end)
    assert made.read_to.offset == files.end
    files.to = files.between
    made = reading(files, files.prepared, {})
    made.read()
    files.to = files.end
    with pytest.raises(ActRefusedError, match="start the operation again later"):
        made.catch_up()


@pytest.mark.found
def test_the_plan_of_an_interval_does_not_count_rows_that_an_xa_transaction_prepared_before(tmp_path: Path) -> None:
    """Defect 1061: `backfill --plan` failed too."""
    files = Files()
    sample = IntervalReader(CONFIG, at(files.prepared), NoHistory(), frozenset(), files=lambda: files)  # type: ignore[arg-type, return-value]
    staged = sample.staged(tmp_path, {}, PreparedBefore())
    assert (sample.whole, sample.end.offset, staged.manifest.tables) == (True, files.end, ())
