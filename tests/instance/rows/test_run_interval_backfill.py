"""Tests which part of the binlog a backfill of a run applies again."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.instance.rows import interval
from sluice.cdc_engine.instance.rows.interval import BinlogInterval, locate_interval
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.parser.positions.time_position import first_at_or_after
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.position import Position
from sluice.orchestration.run.rows.merged_run import interval_of_run
from sluice.spark_jobs.tables.commit_record import CommittedInterval

SERVER = "mariadb-1"
SECOND_US = 1_000_000


def at(file: int, offset: int, epoch: int = 1) -> Position:
    return Position(epoch=epoch, file=f"b.{file:06d}", offset=offset, server_uuid=SERVER)


def merged(first_us: int, last_us: int, start: Position, end: Position) -> CommittedInterval:
    return CommittedInterval(
        version_before=1,
        version=2,
        committed_at_us=9,
        operation="MERGE",
        table="shop.orders",
        run="one",
        start=start.to_json(),
        end=end.to_json(),
        first_commit_time_us=first_us,
        last_commit_time_us=last_us,
    )


class Files:
    """The binlog files of a server, without content."""

    origin, nothing_purged, bytes_read = "source", False, 0

    def __init__(self, *numbers: int) -> None:
        self.logs = tuple(BinaryLog(file=f"b.{number:06d}", size_bytes=900) for number in numbers)
        self.facts = ServerFacts(
            version="10.11",
            mariadb=True,
            server_uuid=SERVER,
            gtid_enabled=False,
            file=self.logs[-1].file,
            offset=900,
            logs=self.logs,
        )

    def reach(self, is_enough: Any) -> None:
        pass

    def created(self, file: str) -> int:  # noqa: ARG002
        return 1_000_000


def located(monkeypatch: pytest.MonkeyPatch, between: tuple[Position, Position], *numbers: int) -> BinlogInterval:
    monkeypatch.setattr(interval, "files_for", lambda *_: Files(*numbers))
    monkeypatch.setattr(interval, "choice_at", lambda *_: StartChoice(file="b.000003", offset=77))
    config = cast("DestinationConfig", type("Named", (), {"name": "shop"}))
    ledger = Ledger(ledger_id="ab12", cursor=at(3, 800))
    request = RequestedInterval(from_us=60 * SECOND_US, to_us=61 * SECOND_US, between=between)
    return locate_interval(config, ledger, request)


@pytest.mark.found
def test_a_run_of_changes_with_whole_seconds_includes_its_last_second() -> None:
    """Defect 1059: MariaDB and MySQL 5.7 log commit times in whole seconds, which count as the last moments of their seconds. `sluice
    backfill --run` ended before the last second of the run, and left out the changes of this second.
    """
    found = interval_of_run({"shop.orders": [merged(5 * SECOND_US, 7 * SECOND_US, at(1, 4), at(1, 500))]}, "one")
    times = np.array([4, 5, 6, 7, 8], np.int64) * SECOND_US
    assert found.to_us is not None
    assert (first_at_or_after(times, found.from_us), first_at_or_after(times, found.to_us)) == (1, 4)
    fractions = interval_of_run({"shop.orders": [merged(5, 7, at(1, 4), at(1, 500))]}, "one")
    assert (fractions.from_us, fractions.to_us) == (5, 8)


@pytest.mark.found
def test_a_run_is_found_by_positions_because_commit_times_are_not_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect 1059: MariaDB and MySQL 5.7 log the time at which a statement began. A change that took a minute is in the binlog after
    changes with later times, so the time of its run ended at a position before the change, and `backfill --run` did not apply it.
    """
    commits = [merged(5, 6, at(2, 400), at(2, 500)), merged(3, 4, at(2, 300), at(2, 400))]
    between = interval_of_run({"shop.orders": commits}, "one").between
    assert between == (at(2, 300), at(2, 500))
    found = located(monkeypatch, between, 2, 3)
    assert (found.begin, found.end) == between
    assert located(monkeypatch, (at(2, 300), at(4, 500)), 2, 3).end == at(3, 900), "the archive ends earlier"
    for given, numbers in ((between, (3,)), ((at(2, 300, epoch=2), at(2, 500, epoch=2)), (2, 3))):
        assert located(monkeypatch, given, *numbers).begin == at(3, 77), "found by time"
    two_epochs = [commits[0], dataclasses.replace(commits[1], start=at(9, 4, epoch=0).to_json())]
    assert interval_of_run({"shop.orders": two_epochs}, "one").between is None
