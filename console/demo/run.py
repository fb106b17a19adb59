"""Runs `sluice demo`: sets up the machine, starts all processes, runs the traffic, shows the live view or the comparison, and stops all
processes.

All processes are children of the demo's process. All of them end with the demo, even if the demo is killed by SIGKILL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.console import Console, Group
from rich.live import Live

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.position import file_number
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.demo import live
from sluice.console.demo.home import DESTINATION, DemoHome, demo_ports, open_home
from sluice.console.demo.lake import DemoTable
from sluice.console.demo.pace import TrafficThread
from sluice.console.demo.rows_before import RowsBefore
from sluice.console.demo.runs import RunLog
from sluice.console.demo.schema import DATABASE, TABLES, VISITS, VISITS_BODY
from sluice.console.demo.source import PASSWORD_VARIABLE, DemoSource
from sluice.console.demo.summary import Before, DemoSummary, show, summarise
from sluice.console.stack import signals
from sluice.console.stack.processes import ProcessFile, StopStep, stop, terminate
from sluice.console.stack.stack import Stack, StackOptions
from sluice.console.status.report import DestinationStatus, read_destination
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.setup import set_up
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, TableResult
from sluice.orchestration.base.table_catalog import delta_key

MYSQL = "mysql"
# A demo without --once executes its ALTER TABLE and its TRUNCATE this many seconds after the traffic began. With --once, these times depend
# on --seconds.
ALTER_SECONDS, TRUNCATE_SECONDS = 20.0, 30.0
# After the traffic has ended, the demo waits at most this many seconds until all transactions are acked, and then fails.
ACK_SECONDS_MAX = 1800.0
# If no batch is acked for this many seconds after the traffic has ended, the demo fails. The time is long, because the first merge on a
# busy machine takes minutes.
STALL_SECONDS_MAX = 600.0
VIEW_SECONDS = 2.0
SAY_SECONDS = 5.0  # The interval between two lines that report the progress of a wait.
# The interval between two views if the output is not a terminal, where each view is printed below the previous view.
PLAIN_VIEW_SECONDS = 15.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoOptions:
    once: bool = False
    seconds: int = 60
    json_file: Path | None = None
    rate: float = 20.0
    port_base: int = 0
    folder: Path | None = None
    fresh: bool = False
    visits: int = 2_000_000


class Demo:
    """A running demo: its MySQL, the processes of Sluice, and its lake."""

    def __init__(self, options: DemoOptions, home: DemoHome, screen: Console) -> None:
        self.options, self.home, self.screen = options, home, screen
        ports, mysql_port = demo_ports(options.port_base)
        self.source = DemoSource(home.source_folder, mysql_port)
        self.config: SluiceConfig = home.configure(ports, self.source.destination())
        self.stack = Stack(
            self.config,
            home.conf,
            self._say,
            StackOptions(
                spark_memory="2g",
                die_with_parent=True,
                environment={PASSWORD_VARIABLE: self.source.password},
                port_advice="give the demo other ports with --port-base",
            ),
        )
        self.file = ProcessFile(self.config.data_dir / "processes.json")
        self.lake = {
            name: DemoTable(Path(self.config.table_path(DESTINATION, DATABASE, name)), keyless="KEY" not in body)
            for name, body in {**TABLES, VISITS: VISITS_BODY}.items()
        }
        self.began = time.time()
        records = SnapshotRecords(self.config.destination_dir(DESTINATION))
        page = "/".join(delta_key(DESTINATION, f"{DATABASE}.{VISITS}").path)
        where = f"Its page: {self.stack.url}/assets/{page}"
        self.before = RowsBefore(records, f"{DATABASE}.{VISITS}", screen, where)

    def start(self) -> None:
        """Starts MySQL, then the processes of Sluice. Returns when all of them answer."""
        self._sweep()
        self._say("starting MySQL")
        self.source.start(self.options.visits)
        self.file.add(MYSQL, self.source.server.pid, self.source.server.port)
        self.before.__enter__()
        self.stack.up()
        self.runs = RunLog(self.stack.dagster_home, self.config.lake, DESTINATION, self.began)

    def stop(self) -> None:
        """Ends all processes of this demo. MySQL ends last, because the engine reads from it until the engine has stopped. Raises
        SetupError if a process still runs after SIGKILL.
        """
        self.before.__exit__()
        left = self.stack.down()
        self.source.stop()
        self.file.remove([MYSQL])
        if left:
            raise SetupError(
                f"These processes still run after SIGKILL: {', '.join(map(str, left))}; examine each process with `ps -fp PID`."
            )

    def watch(self, pace: TrafficThread) -> None:
        """Shows the progress of the initial snapshot, and then the live view until Ctrl-C. If the output is not a terminal, prints the view
        at intervals.
        """
        self.before.wait(lambda: self._look_after(pace))
        if not self.screen.is_terminal:
            self._watch(pace, self.screen.print, PLAIN_VIEW_SECONDS)
        with Live(console=self.screen, auto_refresh=False) as view:
            self._watch(pace, lambda picture: view.update(picture, refresh=True), VIEW_SECONDS)

    def _watch(self, pace: TrafficThread, display: Callable[[Group], None], seconds: float) -> NoReturn:
        self._say(live.example_query(self.home.conf))
        with contextlib.closing(self.source.connect()) as connection:
            while True:
                self._look_after(pace)
                picture = live.take(connection, self.lake, self.runs, self.engine(), pace.transactions)
                display(live.draw(picture, self.stack.url))
                time.sleep(seconds)

    def once(self, pace: TrafficThread, before: dict[str, Before]) -> DemoSummary:
        """Runs the traffic for the configured time, waits until all of its changes are merged, and compares MySQL with the lake. Raises
        SetupError if the traffic fails, or if the changes are not merged in time (see ACK_SECONDS_MAX and STALL_SECONDS_MAX).
        """
        self._say(f"traffic for {self.options.seconds} s at {self.options.rate:g} transactions/s; UI: {self.stack.url}")
        end = time.monotonic() + self.options.seconds
        while time.monotonic() < end:
            self._look_after(pace)
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        pace.stop()
        self._say(f"{pace.transactions} transactions are in MySQL; waiting until all of them are acked")
        self._wait_until_acked(self.source.end())
        self._wait_until_published()
        self._say("comparing every table row by row")
        wall_seconds = time.time() - self.began
        return summarise(self._compared(), self.lake, before, self.runs.read(), wall_seconds)

    def _look_after(self, pace: TrafficThread) -> None:
        pace.raise_failure()
        self.stack.revive()

    def _compared(self) -> dict[str, TableResult]:
        """Compares every table row by row, as `sluice equal` does. Returns the result of each table."""
        source = source_of(self.config.destinations[DESTINATION])
        request = ComparedDestination(
            self.config, DESTINATION, dataclasses.replace(source, password=lambda: self.source.password)
        )
        return {found.table: found for found in compare_destination(request, (), Extent())}

    def engine(self) -> DestinationStatus:
        return read_destination(self.config.destination_dir(DESTINATION), DESTINATION, time.time())

    def _wait_until_acked(self, end: tuple[int, int]) -> None:
        started = progressed = time.monotonic()
        reached, said = (-1, -1), 0.0
        while True:
            self.stack.revive()
            acked = self._acked()
            if acked >= end and not self.engine().outstanding:
                return
            now = time.monotonic()
            if acked > reached:
                reached, progressed = acked, now
            if now - said >= SAY_SECONDS:
                said = now
                self._say(f"  {now - started:4.0f} s  {self._progress(end)}")
            if now - started > ACK_SECONDS_MAX or now - progressed > STALL_SECONDS_MAX:
                raise SetupError(
                    f"The demo stopped waiting before all changes were acked ({self._progress(end)}); the logs in "
                    f"{self.stack.logs} show why."
                )
            time.sleep(0.5)

    def _wait_until_published(self) -> None:
        """Waits until the initial snapshot is published. On an idle machine, this happens long before the traffic ends. Raises SetupError
        if the snapshot fails, or is not published within ACK_SECONDS_MAX.
        """
        records, begun = SnapshotRecords(self.config.destination_dir(DESTINATION)), time.monotonic()
        while (record := records.get(f"{DATABASE}.{VISITS}")) is None or record.is_open:
            self.stack.revive()
            if record is not None and record.state == SnapshotState.FAILED:
                raise SetupError(
                    f"The initial snapshot of {record.name} failed: {record.reason}; the logs in {self.stack.logs} show why."
                )
            if time.monotonic() - begun > ACK_SECONDS_MAX:
                raise SetupError(
                    f"The initial snapshot of {VISITS} was not published within {ACK_SECONDS_MAX:.0f} s; the logs in "
                    f"{self.stack.logs} show why."
                )
            time.sleep(0.5)

    def _acked(self) -> tuple[int, int]:
        cursor = read_ledger(self.config.destination_dir(DESTINATION)).cursor
        return (file_number(cursor.file), cursor.offset) if cursor else (0, 0)

    def _progress(self, end: tuple[int, int]) -> str:
        engine = self.engine()
        stopped = "".join(
            f"; table {table.get('table')} {table.get('state')}: {table.get('reason')}"
            for table in engine.stopped_tables
        )
        state = f"{engine.state} {engine.reason}".strip()
        return f"acked {engine.cursor or 'nothing'} of {end[0]}:{end[1]}, engine {state}, last run {self.runs.read().last}{stopped}"

    def _sweep(self) -> None:
        """Ends processes that an earlier demo in this directory has left running. Usually there are none, because a guard process ends the
        processes of a killed demo. Processes remain only if their guard process was killed too.
        """
        self.stack.down()
        for record in self.file.load():
            stop(record, [StopStep(terminate, 30.0)])
        self.file.save([])

    def _say(self, sentence: str) -> None:
        self.screen.print(sentence, highlight=False, markup=False, soft_wrap=True)


def run_demo(options: DemoOptions, screen: Console) -> int:
    """Runs the demo, and returns the exit code. With --once, the exit code is 0 if all tables of the lake equal those in MySQL, and 1 if a
    table differs or after Ctrl-C. Without --once, the demo runs until Ctrl-C, and the exit code is 0.
    """
    home = open_home(options.folder)
    with home.alone(), signals.heard():
        if options.fresh:
            home.start_over()
        set_up(kernels=True, screen=screen)
        demo = Demo(options, home, screen)
        try:
            with signals.duckdb_interrupts():
                return _run(demo)
        except KeyboardInterrupt:
            screen.print("\nstopping")
            return 1 if options.once else 0
        finally:
            with signals.unheard():
                demo.stop()
                screen.print("all processes of the demo have ended")


def _run(demo: Demo) -> int:
    options = demo.options
    demo.start()
    before = {name: Before.of(table) for name, table in demo.lake.items()}
    pace = TrafficThread(
        demo.source.connect,
        options.rate,
        alter_after_seconds=options.seconds / 3 if options.once else ALTER_SECONDS,
        truncate_after_seconds=options.seconds / 2 if options.once else TRUNCATE_SECONDS,
    )
    pace.start()
    try:
        if not options.once:
            demo.watch(pace)
        summary = demo.once(pace, before)
    finally:
        pace.abandon()
    show(summary, demo.screen)
    if options.json_file:
        options.json_file.write_text(json.dumps(summary.to_json(), indent=1) + "\n")
    return 0 if summary.equal else 1
