"""Defines the code location of the acceptance tests. Definitions, ledger and run lock are real. Only the source and Spark are replaced.

The source is a number in a file, which the test increases. A batch is the numbers after the cursor, up to this number. The lake is a file
with one line per commit. It drops numbers that it already has, as Delta does by the txn version. A merge waits while the file of its gate
exists, so a test can kill it before or after its commit. `dagster api grpc` and every run load this module.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.cdc_engine.limits import TICK_SECONDS_MAX
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position
from sluice.orchestration.base.ports import MergeOrder, Ports
from sluice.orchestration.base.testing import FakeState, fake_report
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.rpc.run_caller import caller_of_code_server
from tests.fix_ledgers import FileLedger

FILE, FIRST = "mysql-bin.000001", 4
NUMBER_BYTES = 16  # The bytes of binlog that a number takes. Two transactions end at least this far apart.
GATE_SECONDS_MAX = 120.0
TABLE = "shop.orders"


def atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


class NumberEngine:
    """An engine whose source is the file `captured`, on the real ledger."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._meta = FileLedger(directory)
        self._lock = threading.Lock()
        self._meta.update(lambda ledger: ledger.restarted(lambda _: True))

    def status(self) -> FakeState:
        return FakeState(cursor=self._meta.ledger.cursor)

    def outstanding(self) -> OutstandingBatch | None:
        return self._meta.ledger.head

    def hand_out(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        assert timeout_seconds < TICK_SECONDS_MAX
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._lock:
                if self._meta.ledger.head is None:
                    self._stage_next(appendable=appendable)
                if self._meta.ledger.head is not None or time.monotonic() >= deadline:
                    return self._meta.ledger.head
            threading.Event().wait(0.05)

    def take(self, batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        pass_gate(self.directory, "take", str(batch.delivery))
        with self._lock:
            head, end = self._meta.ledger.head, int((self.directory / "captured").read_text())
            if head is None or head.delivery != batch.delivery:
                raise BatchNotFoundError(f"delivery {batch.delivery} is no longer outstanding")
            if not head.appendable:
                return head
            longer = None
            if append and end * NUMBER_BYTES > head.end.offset:
                position = dataclasses.replace(head.end, offset=end * NUMBER_BYTES)
                path, numbers = self._write(head.delivery, head.start.offset // NUMBER_BYTES, end)
                longer = dataclasses.replace(head, end=position, path=path, rows=numbers)
            return self._meta.update(lambda ledger: ledger.taken(head, longer)).outstanding[0]

    def _write(self, delivery: int, taken: int, end: int) -> tuple[str, int]:
        """Writes the numbers after `taken`, up to `end`, to a folder. Returns the path of the folder, and how many numbers it contains."""
        path = f"staging/1-1-{end}-{delivery}"
        (self.directory / path).mkdir(parents=True, exist_ok=True)
        numbers = list(range(taken + 1, end + 1))
        atomically(self.directory / path / "manifest.json", json.dumps(numbers))
        return path, len(numbers)

    def _stage_next(self, *, appendable: bool) -> None:
        cursor = self._meta.ledger.cursor or Position(epoch=1, file=FILE, offset=FIRST * NUMBER_BYTES)
        end, taken = int((self.directory / "captured").read_text()), cursor.offset // NUMBER_BYTES
        if end <= taken:
            return
        position = dataclasses.replace(cursor, offset=end * NUMBER_BYTES, time_us=int(time.time() * 1e6))
        batch = self._meta.ledger.next_batch(position, cursor)
        path, rows = self._write(batch.delivery, taken, end)
        staged = dataclasses.replace(batch, path=path, rows=rows, bytes=1, tables=(TABLE,), appendable=appendable)
        self._meta.update(lambda ledger: ledger.hand_out(staged))

    def ack(self, batch: OutstandingBatch) -> None:
        self._meta.update(lambda ledger: ledger.ack(batch.batch_id, batch.delivery))

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        again = Ledger.rollback_one if damaged else Ledger.redeliver
        self._meta.update(lambda ledger: again(ledger, batch.batch_id, batch.delivery))

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        self._meta.update(lambda ledger: ledger.redeliver(batch.batch_id, batch.delivery, without=reasons.keys()))

    def report_lake(self, troubles: tuple[str, ...]) -> None:
        """Does nothing, because no test reads the status."""

    def report_tick(self, failed: str = "") -> None:
        """Does nothing, because no test reads the status."""

    def report_run(self, batch: OutstandingBatch, state: str) -> None:
        """Does nothing, because no test reads the status."""

    def report_failing(self, reason: str) -> None:
        """Does nothing, because no test reads the status."""

    def report_waiting(self, reason: str) -> None:
        atomically(self.directory / "waiting", reason)


class NumberHost:
    """Hosts the one engine of this process."""

    def __init__(self) -> None:
        self._engines: dict[str, NumberEngine] = {}
        self._lock = threading.Lock()

    def get_or_start(self, destination: str) -> NumberEngine:
        with self._lock:
            if destination not in self._engines:
                self._engines[destination] = NumberEngine(CONFIG.destination_dir(destination))
            return self._engines[destination]


def pass_gate(directory: Path, gate: str, name: str) -> None:
    """Reports that this process has reached the gate, and waits while the gate is closed."""
    atomically(directory / f"at.{gate}", f"{os.getpid()} {name}")
    deadline = time.monotonic() + GATE_SECONDS_MAX
    while (directory / f"shut.{gate}").exists():
        assert time.monotonic() < deadline, f"nobody opened the gate {gate}"
        threading.Event().wait(0.02)


def merge(order: MergeOrder, on_table_done: Callable[[TableReport], None]) -> None:
    """Merges the batch in one guarded commit."""
    directory = order.batch_dir.parents[1]
    numbers = json.loads((order.batch_dir / "manifest.json").read_text())
    pass_gate(directory, "before", order.batch_dir.name)
    lake = directory / "lake"
    lines = [json.loads(line) for line in lake.read_text().splitlines()] if lake.exists() else []
    last = max((number for line in lines for number in line["numbers"]), default=FIRST)
    fresh = [number for number in numbers if number > last]
    line = {"batch": order.batch_dir.name, "numbers": fresh, "at_seconds": time.time()}
    atomically(lake, "".join(json.dumps(each) + "\n" for each in [*lines, line]))
    pass_gate(directory, "after", order.batch_dir.name)
    last_commit_time_us = int(time.time() * 1e6)
    on_table_done(
        dataclasses.replace(fake_report(TABLE), rows_inserted=len(fresh), last_commit_time_us=last_commit_time_us)
    )


CONFIG = load_config()
HOST = NumberHost()
defs = build_definitions(
    CONFIG, Ports(host=lambda: HOST, files=lambda: destination_files, merge=merge, run_engine=caller_of_code_server)
)
