"""Tests resumed tables: what happens to the ledger and the stream, and the message if a table cannot be resumed."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.instance.tables.resume import take_up
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.resume_requests import ResumeKind, ResumeRequest, request, requests
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.memory import MemoryRecordStore
from sluice.cdc_engine.states import TableState
from tests.fix_ledgers import MemoryLedger, home_of

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def at(offset: int, file: int = 7, epoch: int = 1) -> Position:
    return Position(epoch=epoch, file=f"mysql-bin.{file:06d}", offset=offset, server_uuid=SERVER)


def stopped(table: str, position: Position) -> StoppedTable:
    return StoppedTable(
        database="shop", table=table, state=TableState.DDL_HELD, reason=f"rename of {table}", position=position
    )


def never_begun() -> None:
    pytest.fail("the stream must not begin anew")


@dataclasses.dataclass
class Source:
    """A ledger with stops, the answers of the server, and the positions from which the stream was read again."""

    meta: MemoryLedger
    facts: ServerFacts
    begun: list[Position | None] = dataclasses.field(default_factory=list)

    def take_up(self, *tables: str) -> None:
        wanted = [
            ResumeRequest("shop", table, f"resume-requests/{table}.json", MemoryRecordStore()) for table in tables
        ]
        with tempfile.TemporaryDirectory() as folder:
            take_up(wanted, self.meta, lambda *_: self.facts, self._read_again, Path(folder))

    def _read_again(self) -> None:
        self.begun.append(self.meta.ledger.resume_position)

    @property
    def states(self) -> dict[str, str]:
        return {stop.table: stop.state for stop in self.meta.ledger.stopped_tables}


@pytest.fixture
def source() -> Source:
    ledger = Ledger(
        cursor=at(900),
        server_uuid=SERVER,
        stopped_tables=(stopped("early", at(200)), stopped("late", at(500)), stopped("old", at(100, file=3))),
    )
    logs = tuple(BinaryLog(file=f"mysql-bin.{number:06d}", size_bytes=10_000) for number in (6, 7))
    facts = ServerFacts(version="8.0.31", mariadb=False, server_uuid=SERVER, gtid_enabled=False, logs=logs)
    return Source(MemoryLedger(ledger), facts)


def test_ddl_the_stream_begins_at_the_stop_and_stops_before_it_stay(source: Source) -> None:
    source.take_up("late")
    assert source.begun == [at(500)]
    assert source.meta.ledger.cursor == at(500)
    assert source.states == {"early": "DDL_HELD", "old": "DDL_HELD"}


def test_ddl_of_several_the_first_stop_counts_and_those_behind_it_are_met_again(source: Source) -> None:
    source.take_up("late", "early")
    assert source.begun == [at(200)]
    assert source.states == {"old": "DDL_HELD"}


def test_ddl_a_table_that_the_stream_does_not_show_again_waits_for_a_request(source: Source) -> None:
    for state in (TableState.NEWLY_INCLUDED, TableState.SNAPSHOT_CANCELED):
        stop = dataclasses.replace(stopped(str(state), at(600)), state=state)
        source.meta.update(functools.partial(Ledger.stop_table, stopped=stop))
    source.take_up("late")
    assert source.states == {
        "early": "DDL_HELD",
        "old": "DDL_HELD",
        "NEWLY_INCLUDED": "NEWLY_INCLUDED",
        "SNAPSHOT_CANCELED": "SNAPSHOT_CANCELED",
    }
    source.take_up("NEWLY_INCLUDED")
    assert set(source.states) == {"early", "old", "SNAPSHOT_CANCELED"}


def test_fault_a_stop_after_the_cursor_does_not_take_the_cursor_along(source: Source) -> None:
    """The batch of the stopped table was rolled back, so no run has merged what lies between the two positions."""
    source.meta.update(lambda ledger: ledger.stop_table(stopped("latest", at(1200))))
    source.take_up("latest")
    assert source.meta.ledger.cursor == at(900)
    assert set(source.states) == {"early", "late", "old"}


def test_ddl_a_table_whose_binlog_is_purged_says_so_and_the_others_continue(source: Source) -> None:
    source.take_up("old", "late")
    assert source.begun == [at(500)]
    assert source.states == {"early": "DDL_HELD", "old": "RESUME_LOST"}
    lost = source.meta.ledger.stopped("shop", "old")
    assert lost is not None
    assert lost.position == at(100, file=3)
    assert "mysql-bin.000003" in lost.reason
    assert "rename of old" in lost.reason
    source.take_up("old")
    assert source.meta.ledger.stopped("shop", "old") == lost


def test_ddl_a_stop_of_an_earlier_epoch_cannot_be_read_from(source: Source) -> None:
    source.meta.update(lambda ledger: ledger.begin_epoch(ledger.epoch + 1))
    source.take_up("late")
    assert source.begun == []
    assert source.states["late"] == "RESUME_LOST"


def test_ddl_a_table_that_has_not_stopped_is_left_as_it_is(source: Source) -> None:
    before = source.meta.ledger
    source.take_up("calm")
    assert (source.begun, source.meta.ledger) == ([], before)


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_ddl_a_request_is_kept_until_it_is_dealt_with(tmp_path: Path, kind: str) -> None:
    directory = home_of(kind, tmp_path)
    name = "/." + 62 * "你"
    request(directory, "shop", name, ResumeKind.CANCEL)
    request(directory, "shop", name)
    (found,) = requests(directory)
    assert (found.database, found.table, found.kind) == ("shop", name, ResumeKind.RESUME)
    assert bool(list(tmp_path.rglob("resume-requests"))) is (kind == "folder")
    take_up([found], MemoryLedger(), pytest.fail, never_begun, tmp_path)
    assert requests(directory) == ()


@pytest.mark.found
@pytest.mark.parametrize("kind", ["folder", "store"])
def test_ddl_a_request_that_replaces_another_during_its_execution_is_kept(tmp_path: Path, kind: str) -> None:
    """Defect 1064: the engine removed the record of an executed request, even if the operator had requested something else meanwhile. For
    example, `sluice snapshot cancel` was lost while the engine carried out `snapshot start` or `schema resume` of the table.
    """
    home = home_of(kind, tmp_path)
    request(home, "shop", "orders", ResumeKind.RE_SNAPSHOT)
    (executed,) = requests(home)
    request(home, "shop", "orders", ResumeKind.CANCEL)
    executed.done()
    (later,) = requests(home)
    assert later.kind is ResumeKind.CANCEL
    later.done()
    assert requests(home) == ()


def test_ddl_a_request_that_is_not_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "resume-requests").mkdir()
    (tmp_path / "resume-requests" / "x.json").write_text("[]")
    with pytest.raises(MetaError, match=r"x\.json cannot be read"):
        requests(tmp_path)
