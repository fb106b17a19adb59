"""Provides the recorded MySQL 8.0 binlog with which the kernels are compiled, in the form in which a consumer gets it."""

from __future__ import annotations

import functools
import struct
import tempfile
from pathlib import Path

from sluice.cdc_engine import limits
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen, Selection, StreamPosition
from sluice.cdc_engine.instance.consumers.statements import wanted_statements
from sluice.cdc_engine.instance.rehearsal import RECORDING, START, recorded_events
from sluice.cdc_engine.parser.scan.framing import PacketFramer
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.sink.event_sink import CapturedTables, EventSink
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.store.window.window import Window
from sluice.cdc_engine.table_meta.ddl.declared_type import MYSQL
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts


@functools.cache
def recorded() -> tuple[Chosen, ...]:
    """Returns the whole recording, including statements."""
    with tempfile.TemporaryDirectory(prefix="sluice-recorded-") as name:
        window, captured = _window(Path(name)), CapturedTables([TableFilter(r".*\..*", "")])
    selection = Selection(tables=captured, wants=wanted_statements(captured))
    position, found = StreamPosition(WindowPosition(window.begin)), list[Chosen]()
    while (
        reading := window.read(position.window_position, limits.READ_BUFFER_BYTES, limits.BATCH_EVENTS_MAX)
    ) and reading.pieces:
        chosen, state = selection.chosen(reading.pieces, position.state)
        found += chosen
        position = StreamPosition(reading.end, state)
    return tuple(found)


def _window(folder: Path) -> Window:
    captured = TableFilter(r".*\..*", "")
    history = TableHistory(folder / "schema.jsonl", captured.keeps)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour=MYSQL, charset="utf8mb4"), databases=(), tables=()), START)
    window = Window(START, bytes_max=limits.RING_BYTES_MAX)
    sink = EventSink(MemoryEventStore(folder / "spill", start=START), captured, window)
    framer = PacketFramer(Scanner(start=START, history=history, captured=captured.keeps))
    for event in recorded_events(RECORDING.read_bytes()):
        packet = struct.pack("<I", len(event) + 1)[:3] + b"\0\0" + event
        framer.space()[: len(packet)] = packet
        for block in framer.received(len(packet)):
            sink.accept(block)
    return window
