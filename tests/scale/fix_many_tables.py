"""Creates a destination with many tables as its engine and its runs would leave it, without a server. Counts what code does with it."""

from __future__ import annotations

import builtins
import contextlib
import cProfile
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_to_text
from sluice.cdc_engine.meta.stored_ledger import LEDGER as LEDGER_RECORD
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, ForeignKey, TableSchema
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter
from tests.fix_ledgers import at
from tests.orchestration.fix_location import make_config

BEGIN = at(10)
FEW, MANY = 500, 1000  # The second number is twice the first, so a cost that grows with the tables doubles.
FOLLOWERS = 10  # Every tenth table refers to the table before it by a foreign key.


def table_schema(number: int) -> TableSchema:
    """Returns the schema of one of the tables. The number of columns differs between tables, and some tables refer to another one by a
    foreign key.
    """
    columns = (
        DeclaredColumn(name="id", type="bigint", nullable=False),
        *(DeclaredColumn(name=f"c{each}", type="varchar(40)", charset="utf8mb4") for each in range(2 + number % 9)),
    )
    parent = ("shop", table_name(number - 1).partition(".")[2])
    key = ForeignKey(name=f"fk{number}", columns=("id",), parent=parent, referenced=("id",), on_delete="CASCADE")
    return TableSchema(
        database="shop",
        table=table_name(number).partition(".")[2],
        charset="utf8mb4",
        columns=columns,
        key=("id",),
        foreign_keys=(key,) if number % FOLLOWERS == FOLLOWERS - 1 else (),
    )


def table_name(number: int) -> str:
    return f"shop.t{number:05d}"


def table_names(count: int) -> list[str]:
    return [table_name(number) for number in range(count)]


def open_history(config: SluiceConfig) -> PublishedHistory:
    """Opens the history of the destination as its engine does."""
    directory = config.destination_dir("shop")
    history = TableHistory(directory / "schema.jsonl", lambda database, _: database == "shop")
    return PublishedHistory(history, TableListWriter(directory), lambda: None)


def make_destination(root: Path, count: int) -> tuple[SluiceConfig, PublishedHistory]:
    """Creates the destination `shop`: its ledger, its schema history and its list of tables."""
    config = make_config(root)
    directory = config.destination_dir("shop")
    directory.mkdir(parents=True)
    ledger = Ledger(ledger_id="0123456789ab", epoch=1, cursor=BEGIN)
    record_store(directory).put(LEDGER_RECORD, ledger_to_text(ledger))
    history = open_history(config)
    facts = DdlServerFacts(flavour="mysql", charset="utf8mb4")
    tables = tuple(table_schema(number) for number in range(count))
    history.seed(SchemaSnapshot(facts, (("shop", "utf8mb4"),), tables), BEGIN)
    settle(directory)
    return config, history


def keep_lake_tables(config: SluiceConfig, count: int) -> LakeTables:
    """Stores an id and a version of each table, as runs leave them."""
    kept = LakeTables(config.destination_dir("shop"))
    kept.keep({name: (f"id-{name}", 1) for name in table_names(count)})
    return kept


def request_snapshots(config: SluiceConfig, count: int) -> SnapshotRecords:
    """Requests a snapshot of each table, as `sluice snapshot start` does."""
    records = SnapshotRecords(config.destination_dir("shop"))
    for name in table_names(count):
        records.begin(wanted(name, BEGIN, now=1.0))
    settle(config.destination_dir("shop"))
    return records


def settle(folder: Path) -> None:
    """Sets the times of all files back by a second. A file that was written just now would be read again."""
    for path in filter(Path.is_file, folder.rglob("*")):
        os.utime(path, (path.stat().st_atime - 1, path.stat().st_mtime - 1))


class Counted:
    """The actions of a `with` block: the function calls, in total and by name, and the names of the files that it opened to read or to
    write.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.named = Counter[str]()
        self.read = Counter[str]()
        self.written = Counter[str]()


@contextlib.contextmanager
def counted() -> Iterator[Counted]:
    """Counts what a `with` block does in this thread. Calls of functions in C are included. The counts do not depend on the machine."""
    found, opened, low = Counted(), io.open, os.open

    def open_file(file: Any, mode: str = "r", *args: Any, **given: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            counter = found.read if mode.startswith("r") and "+" not in mode else found.written
            counter[Path(os.fspath(file)).name] += 1
        return opened(file, mode, *args, **given)

    def open_low(file: Any, flags: int, *args: Any, **given: Any) -> int:
        if isinstance(file, str | os.PathLike) and flags & (os.O_WRONLY | os.O_RDWR):
            found.written[Path(os.fspath(file)).name] += 1
        return low(file, flags, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", open_file)
        patch.setattr(builtins, "open", open_file)
        patch.setattr(os, "open", open_low)
        profile = cProfile.Profile()
        profile.enable()
        try:
            yield found
        finally:
            profile.disable()
            for each in profile.getstats():
                found.calls += each.callcount
                found.named[each.code if isinstance(each.code, str) else each.code.co_name] += each.callcount


def growth(tmp_path: Path, act: Callable[[Path, int], Counted]) -> float:
    """Returns the number of function calls of `act` with MANY tables, divided by the number with FEW. The result is 2.0 if the calls are
    proportional to the tables.

    `act` creates a destination with a number of tables in a folder, and returns what it counted there.
    """
    few, many = (act(tmp_path / str(count), count).calls for count in (FEW, MANY))
    return many / few
