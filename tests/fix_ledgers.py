"""Builds positions and ledgers for the tests of meta, server and client."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.contracts import ClientIdentity, Consumer, DestinationDir, LedgerLocation, StoppedTable
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_to_text
from sluice.cdc_engine.meta.stored_ledger import LEDGER as LEDGER_RECORD
from sluice.cdc_engine.meta.stored_ledger import StoredLedger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.files import FileRecordStore
from sluice.cdc_engine.records.memory import MemoryRecordStore
from sluice.cdc_engine.states import TableState

LEDGER = Ledger(ledger_id="0123456789ab")
CLIENT = ClientIdentity(destination="shop")

UNIT = 16  # The minimum distance of the ends of two transactions.


class FileLedger(StoredLedger):
    """Stores the ledger in the folder of a destination."""

    def __init__(self, directory: Path, *, fence: Callable[[], None] = lambda: None) -> None:
        super().__init__(FileRecordStore(directory), directory.name, fence=fence)


class MemoryLedger(StoredLedger):
    """Stores the ledger in memory."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        records = MemoryRecordStore()
        if ledger is not None:
            known = dataclasses.replace(ledger, ledger_id=ledger.ledger_id or LEDGER.ledger_id)
            records.put(LEDGER_RECORD, ledger_to_text(known))
        super().__init__(records, "shop")


def at(index: int, *, file: int = 1, epoch: int = 1) -> Position:
    """Returns the position that is `index` times UNIT bytes after the beginning of the file."""
    return Position(
        epoch=epoch, file=f"mysql-bin.{file:06d}", offset=index * UNIT, gtid_set="", server_uuid="u", time_us=index
    )


CONSUMER = Consumer(client_id=7, filter="a", cursor=at(6))


def stopped(table: str, offset: int) -> StoppedTable:
    return StoppedTable(
        database="shop", table=table, state=TableState.DDL_UNSUPPORTED, reason="DROP COLUMN", position=at(offset)
    )


def handed_out(ledger: Ledger, end: Position, start: Position | None = None, **changes: object) -> Ledger:
    """Returns the ledger with one more staged batch in flight. `changes` are fields of the batch's record."""
    content = {"path": "staging/x", "rows": 1, "bytes": 1, "tables": ("shop.audit", "shop.orders"), **changes}
    return ledger.hand_out(dataclasses.replace(ledger.next_batch(end, start), **content))  # type: ignore[arg-type]


def full_ledger() -> Ledger:
    """Returns a ledger with a value in every field."""
    ledger = LEDGER.subscribe(ClientIdentity(destination="shop", filter=r"shop\..*")).set_cursor(at(4))
    ledger = handed_out(handed_out(ledger, at(10)), at(20)).ack(1)
    return handed_out(ledger, at(30)).stop_table(stopped("audit", 25)).begin_epoch(2).with_consumer(CONSUMER)


def home_of(kind: str, folder: Path) -> Path:
    """Returns a destination's directory. It is either a folder with everything in it, or it has an object store and a database that other
    hosts can reach.
    """
    if kind == "folder":
        return folder
    store, url = (folder / "store").as_uri(), f"sqlite:///{folder}/meta.db"
    location = LedgerLocation(destination="shop", directory=folder / "shop", kind="sql", url=url, staging=store)
    return DestinationDir.of(location)
