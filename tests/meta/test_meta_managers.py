"""Tests the managers of a ledger: what all of them have in common, and the format, refusals and durability of the file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.errors import BatchNotFoundError, LeaseLostError, MetaError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.meta.stored_ledger import StoredLedger, read_stored_ledger
from sluice.cdc_engine.records.memory import MemoryRecordStore
from tests.fix_ledgers import FileLedger, MemoryLedger, at, full_ledger


@pytest.fixture(params=["file", "memory"])
def meta(request: pytest.FixtureRequest, tmp_path: Path) -> MetaManager:
    return FileLedger(tmp_path / "shop") if request.param == "file" else MemoryLedger()


def test_a_fresh_ledger_has_no_cursor(meta: MetaManager) -> None:
    assert meta.ledger == Ledger(ledger_id=meta.ledger.ledger_id)
    assert len(meta.ledger.ledger_id) == 12


def test_identity_two_ledgers_are_never_the_same_one(tmp_path: Path) -> None:
    assert FileLedger(tmp_path / "a").ledger.ledger_id != FileLedger(tmp_path / "b").ledger.ledger_id
    assert MemoryLedger().ledger.ledger_id != MemoryLedger().ledger.ledger_id


def test_identity_of_a_ledger_is_kept_with_it(tmp_path: Path) -> None:
    born = FileLedger(tmp_path / "shop")
    assert born.is_new is True
    born.update(lambda ledger: ledger)
    assert FileLedger(tmp_path / "shop").is_new is False
    assert FileLedger(tmp_path / "shop").ledger.ledger_id == born.ledger.ledger_id


def test_update_keeps_the_outcome(meta: MetaManager) -> None:
    outcome = meta.update(lambda ledger: ledger.set_cursor(at(4)))
    assert meta.ledger == outcome
    assert outcome.cursor == at(4)


def test_a_transition_that_raises_changes_nothing(meta: MetaManager) -> None:
    before = meta.update(lambda ledger: ledger.set_cursor(at(4)))
    with pytest.raises(BatchNotFoundError):
        meta.update(lambda ledger: ledger.ack(7))
    assert meta.ledger == before


def test_updates_of_many_threads_all_count(meta: MetaManager) -> None:
    threads = [
        threading.Thread(target=meta.update, args=(lambda ledger: ledger.begin_epoch(ledger.epoch + 1),))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meta.ledger.epoch == 17


def test_the_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    meta = FileLedger(tmp_path / "shop")
    meta.update(lambda _: full_ledger())
    reread = FileLedger(tmp_path / "shop").ledger
    assert reread == full_ledger()
    assert [client.filter for client in reread.clients] == [r"shop\..*"]


def test_a_changed_filter_alone_is_written(tmp_path: Path) -> None:
    client = full_ledger().clients[0]
    FileLedger(tmp_path / "shop").update(lambda ledger: ledger.subscribe(client))
    meta = FileLedger(tmp_path / "shop")
    meta.update(lambda ledger: ledger.subscribe(type(client)(destination="shop", filter="other")))
    assert read_ledger(tmp_path / "shop").clients[0].filter == "other"


def test_the_file_has_the_documented_keys(tmp_path: Path) -> None:
    FileLedger(tmp_path).update(lambda _: full_ledger())
    record = json.loads((tmp_path / "meta.json").read_text())
    assert record["format"] == 4
    assert set(record) == {
        *("format", "ledger_id", "given_up", "epoch", "cursor", "server_uuid", "next_batch_id", "next_delivery"),
        *("clients", "outstanding", "stopped_tables", "consumers"),
    }
    assert record["clients"] == [{"client_id": 1001, "filter": r"shop\..*"}]
    assert record["consumers"] == [{"client_id": 7, "filter": "a", "cursor": at(6).to_json()}]
    assert set(record["outstanding"][0]) == {
        "ledger_id",
        "appendable",
        "first_end",
        "batch_id",
        "delivery",
        "start",
        "end",
        "path",
        "rows",
        "bytes",
        "tables",
    }


def broken(**changes: Any) -> str:
    return json.dumps({**json.loads(ledger_to_text(full_ledger())), **changes})


UNREADABLE = {
    "empty": "",
    "cut": ledger_to_text(full_ledger())[:200],
    "list": "[]",
    "later format": broken(format=9),
    "no format": "{}",
    "no identity": broken(ledger_id=""),
    "batches of another ledger": broken(ledger_id="ffffffffffff"),
    "unknown key": broken(extra=1),
    "text for a number": broken(epoch="1"),
    "a truth value for a number": broken(epoch=True),
    "a cursor that is none": broken(cursor={"file": "a"}),
    "a client that is none": broken(clients=[3]),
    "a client without id": broken(clients=[{"filter": ""}]),
    "a batch that is none": broken(outstanding=[None]),
    "a stop that is none": broken(stopped_tables=[{}]),
    "ids that do not ascend": broken(next_batch_id=1),
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_not_understood_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / "meta.json"
    path.write_bytes(UNREADABLE[name].encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(MetaError, match=r"meta\.json is not a valid ledger: .*Restore the ledger"):
        FileLedger(tmp_path)
    assert path.read_bytes() == before


def test_what_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    """A directory has the name of the temporary file. So the write fails before the rename, as with a full disk."""
    meta = FileLedger(tmp_path)
    before = meta.update(lambda ledger: ledger.set_cursor(at(4)))
    (tmp_path / "meta.tmp").mkdir()
    with pytest.raises(MetaError, match=r"meta\.json could not be written"):
        meta.update(lambda ledger: ledger.set_cursor(at(9)))
    assert meta.ledger == before == read_ledger(tmp_path)
    (tmp_path / "meta.tmp").rmdir()
    assert meta.update(lambda ledger: ledger.set_cursor(at(9))) == read_ledger(tmp_path)


class Unsteady(MemoryRecordStore):
    """Imitates a record store that loses answers. `lost` says for each of the next writes whether the write is stored before its answer is
    lost. With None, the write is answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[bool | None] = []

    def write(self, name: str, text: str, **values: Any) -> int:
        stored = self.lost.pop(0) if self.lost else None
        version = super().write(name, text, **values) if stored is not False else 0
        if stored is not None:
            raise MetaError("no answer")
        return version


@pytest.mark.found
@pytest.mark.parametrize("lost", [[True], [False], [True, False], [False, True], [True, True, False]])
def test_a_ledger_whose_writes_are_not_answered_is_still_its_own(lost: list[bool | None]) -> None:
    """Defect 86: after a stored write and a lost one, both without an answer, the ledger counted as written by another process."""
    records = Unsteady()
    meta = StoredLedger(records, "shop")
    meta.update(lambda ledger: ledger.set_cursor(at(4)))
    records.lost = list(lost)
    for number in range(len(lost)):
        with pytest.raises(MetaError, match="no answer"):
            meta.update(lambda ledger, number=number: ledger.set_cursor(at(10 + number)))  # type: ignore[misc]
        assert meta.ledger.cursor == at(4)
    assert meta.update(lambda ledger: ledger.set_cursor(at(30))).cursor == at(30)
    assert read_stored_ledger(records, "shop").cursor == at(30)


def test_without_the_lease_nothing_is_written(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLostError("lost")

    meta = FileLedger(tmp_path, fence=lost)
    with pytest.raises(LeaseLostError):
        meta.update(lambda ledger: ledger.set_cursor(at(4)))
    assert meta.ledger.cursor is None
    assert not (tmp_path / "meta.json").exists()


def test_a_file_that_another_process_writes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    meta = FileLedger(tmp_path)
    meta.update(lambda ledger: ledger.set_cursor(at(4)))
    FileLedger(tmp_path).update(lambda ledger: ledger.set_cursor(at(5)))
    with pytest.raises(LeaseLostError, match=r"was written by another process, .*this engine writes no more"):
        meta.update(lambda ledger: ledger.set_cursor(at(6)))
    assert read_ledger(tmp_path).cursor == at(5)
    (tmp_path / "meta.json").unlink()
    with pytest.raises(LeaseLostError, match=r"was removed, .*this engine writes no more"):
        meta.update(lambda ledger: ledger.set_cursor(at(6)))
    assert not (tmp_path / "meta.json").exists()


WRITER = """
import sys
from pathlib import Path
from tests.fix_ledgers import FileLedger, at
meta = FileLedger(Path(sys.argv[1]))
for offset in range(5, 1_000_000):
    meta.update(lambda ledger: ledger.set_cursor(at(offset)))
    print(offset, flush=True)
"""


def test_a_killed_writer_leaves_the_last_kept_ledger_or_the_next(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    kept = int(lines[-1])
    cursor = read_ledger(tmp_path).cursor
    assert cursor is not None
    assert cursor in (at(kept), at(kept + 1))


def test_text_form_is_stable() -> None:
    text = ledger_to_text(full_ledger())
    assert ledger_to_text(ledger_from_text(text, "shop")) == text
