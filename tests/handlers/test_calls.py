"""Tests when handlers are called, and that a crash between two writes omits no call: the next process finds in the files which calls are
missing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import HandlerError, LeaseLostError, MetaError
from sluice.cdc_engine.handlers.calls import FILE, Call, Calls, Due, Kind, LedgerExtract, due
from sluice.cdc_engine.records.files import LOCK_FILE
from tests.handlers.fix_handlers import Remembering, batch, line


@pytest.mark.parametrize(
    ("kind", "now", "wanted"),
    [
        ("after", line(batch(7)), Due.NOT_YET),  # The process was killed before the ledger was written.
        ("after", line(cursor=200), Due.NOW),
        ("after", line(batch(8), cursor=200), Due.NOW),
        ("after", line(batch(8)), Due.NEVER),  # The position was set back.
        ("after", line(cursor=200, ledger="000000000000"), Due.NEVER),
        ("retry", line(batch(7)), Due.NOT_YET),
        ("retry", line(batch(8)), Due.NOW),
        ("retry", line(), Due.NOW),
        ("retry", line(ledger="000000000000"), Due.NEVER),
    ],
)
def test_the_ledger_decides_whether_handlers_are_called(kind: Kind, now: LedgerExtract, wanted: Due) -> None:
    assert due(Call(kind=kind, batch=batch(7)), now) is wanted


def test_handlers_are_called_once_and_in_the_order_of_conf(tmp_path: Path) -> None:
    first, second = Remembering(), Remembering()
    calls = Calls("shop", tmp_path, [("first", first), ("second", second)])
    calls.before(batch())
    assert first.calls == second.calls == [("before", 7, "")]
    handled = first.seen[0]
    assert (handled.destination, handled.folder, handled.rows) == ("shop", tmp_path / "staging/7", 3)
    calls.will_be("after", batch(), line(batch()))
    calls.call_due(line(batch()))
    assert len(first.calls) == 1
    assert not calls.owed(line(batch()))
    assert calls.owed(line(cursor=200))
    for _ in range(2):
        calls.call_due(line(cursor=200))
    assert first.calls == second.calls == [("before", 7, ""), ("after", 7, "")]
    assert not (tmp_path / FILE).exists()


def test_a_handler_that_fails_is_named_and_only_it_is_called_again(tmp_path: Path) -> None:
    first, second = Remembering(), Remembering()
    second.failing = "retry"
    calls = Calls("shop", tmp_path, [("first", first), ("second", second)])
    calls.will_be("retry", batch(), line(batch()), "the run did not merge the batch")
    failed = r"the handler second failed in `retry` for delivery 7, the batch that ends at .*:200@1"
    wanted = rf"{failed}: ConnectionError: the audit's server is away; .* again"
    for _ in range(2):
        with pytest.raises(HandlerError, match=wanted):
            calls.call_due(line())
        assert calls.owed(line())
    second.failing = ""
    calls.call_due(line())
    assert first.calls == [("retry", 7, "the run did not merge the batch")]
    assert len(second.calls) == 3


@pytest.mark.parametrize(
    ("kind", "now", "reported"),
    [
        ("after", line(cursor=200), 1),
        ("after", line(batch()), 0),
        ("retry", line(batch(8)), 1),
        ("retry", line(batch()), 0),
    ],
)
def test_after_a_kill_the_next_process_makes_the_call_that_the_ledger_has(
    tmp_path: Path, kind: Kind, now: LedgerExtract, reported: int
) -> None:
    Calls("shop", tmp_path, [("audit", Remembering())]).will_be(kind, batch(), line(batch()), "why")
    audit = Remembering()
    calls = Calls("shop", tmp_path, [("audit", audit)])
    calls.call_due(now)
    assert [call[:2] for call in audit.calls] == [(kind, 7)] * reported
    if reported:
        assert audit.seen[0].end == batch().end
    assert (tmp_path / FILE).exists() == (not reported)


def test_handlers_are_not_called_for_a_batch_that_another_process_settled(tmp_path: Path) -> None:
    audit = Remembering()
    calls = Calls("shop", tmp_path, [("audit", audit)])
    calls.will_be("after", batch(), line(cursor=200))
    calls.call_due(line(cursor=200))
    assert audit.calls == []


def test_a_process_that_lost_the_destination_writes_nothing_of_its_handlers(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLostError("another has it")

    calls = Calls("shop", tmp_path, [("audit", Remembering())], fence=lost)
    with pytest.raises(LeaseLostError):
        calls.will_be("after", batch(), line(batch()))
    assert not (tmp_path / FILE).exists()


def test_without_handlers_nothing_is_written_and_what_was_is_removed(tmp_path: Path) -> None:
    Calls("shop", tmp_path, [("audit", Remembering())]).will_be("after", batch(), line(batch()))
    calls = Calls("shop", tmp_path)
    assert not (tmp_path / FILE).exists()
    calls.will_be("after", batch(), line(batch()))
    calls.before(batch())
    calls.call_due(line(cursor=200))
    assert [each.name for each in tmp_path.iterdir()] == [LOCK_FILE]


def test_a_damaged_file_of_handlers_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(MetaError, match=rf"{FILE} cannot be read .*: if you remove the record"):
        Calls("shop", tmp_path, [("audit", Remembering())])


def test_handlers_are_called_for_a_batch_without_tables_too(tmp_path: Path) -> None:
    """All of its tables have stopped since."""
    audit = Remembering()
    calls = Calls("shop", tmp_path, [("audit", audit)])
    calls.will_be("after", dataclasses.replace(batch(), tables=()), line(batch()))
    calls.call_due(line(cursor=200))
    assert audit.seen[0].tables == ()
