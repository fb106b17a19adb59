"""Runs the engine's code on a small recorded binlog, so that numba compiles every kernel and caches the compiled code on disk.

    python -m sluice.cdc_engine.instance.rehearsal FOLDER

`console.toolchain.kernels` calls this module during set-up, so that the first changes on a new machine do not wait for the compiler. The
module calls the same functions as the engine (frames, scan, filter, ring, spill, staging), so that numba gets the argument types of each
kernel. A list of these types would soon be outdated. The recording is a binlog of MySQL 8.0.31 with a row of every kind of column.
`tests/instance/record_rehearsal.py` describes how the recording was made.
"""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.column_types import Values, type_of
from sluice.cdc_engine.binlog.entries.messages import EntryMaker
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.events.event_types import HEADER_BYTES, LENGTH_AT
from sluice.cdc_engine.binlog.result_rows.decoder import ResultDecoder
from sluice.cdc_engine.binlog.result_rows.result_reader import ResultReader
from sluice.cdc_engine.binlog.row_rules.masks import hashed
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.brokers.messages import FORMATS, MessageMaker
from sluice.cdc_engine.brokers.registry.memory import MemoryRegistry
from sluice.cdc_engine.brokers.registry.schema_forms import AVRO, PROTOBUF
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.brokers.routing import Routing, Rules
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.instance.consumers.consumer_stream import Selection, StreamPosition
from sluice.cdc_engine.instance.consumers.forms import ShownEntries
from sluice.cdc_engine.instance.consumers.statements import described, wanted_statements
from sluice.cdc_engine.parser.scan.framing import PacketFramer
from sluice.cdc_engine.parser.scan.scanner import Scanner, StreamForm
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.event_sink import CapturedTables, EventSink
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.staging.staging import stage
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.store.window.window import Window
from sluice.cdc_engine.table_meta.ddl.declared_type import MYSQL
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts

RECORDING = Path(__file__).with_name("rehearsal.binlog")
# A server's recorded answer to the SELECT with which a snapshot reads a chunk. SELECTED is the name of the table.
RESULT = Path(__file__).with_name("rehearsal.result")
SELECTED = "everything"
ADDRESSES = ("inet4", "inet6")
MAGIC_BYTES = 4
START = Position(epoch=1, file="binlog.000001", offset=MAGIC_BYTES)
# The limit of events of the ring in the second pass of `rehearse`. It is so low that the recorded transactions spill to a file.
SPILLING_EVENTS = 2


def rehearse(folder: Path, recording: Path = RECORDING) -> int:
    """Stages the recorded binlog into `folder` twice: from memory, and from spill files. Also converts the changes to a consumer's entries,
    and decodes the rows of a SELECT. Returns the number of rows staged.
    """
    events = list(recorded_events(recording.read_bytes()))
    tables: dict[str, TableVersion] = {}
    rows = sum(
        _staged_rows(events, folder / str(events_max), events_max, tables, rows_queries=rows_queries)
        for events_max, rows_queries in ((limits.RING_EVENTS_MAX, False), (SPILLING_EVENTS, True))
    )
    select_recorded(tables[SELECTED], RESULT.read_bytes())
    finish_addresses()
    hashed(pa.array([SELECTED]), b"salt")
    return rows


def finish_addresses() -> None:
    """Runs the kernels of column types that only MariaDB has, because the recorded binlog of MySQL does not contain these types."""
    for declared in ADDRESSES:
        column = Column(name="address", type_code=TypeCode.STRING, mysql_type=declared)
        type_of(column).finish(Values(np.zeros(1, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64)))


def select_recorded(table: TableVersion, data: bytes) -> int:
    """Decodes the recorded result of a chunk's SELECT. Returns its number of rows."""
    left = io.BytesIO(data)
    result, decoder = ResultReader(left.readinto), ResultDecoder(table)
    if why := decoder.differences(result.sent_columns()):
        raise ValueError(f"the recorded result does not fit the recorded table {table.name}: {why}")
    return sum(batch.num_rows for batch in result.batches(decoder))


def recorded_events(data: bytes) -> Iterator[bytes]:
    """Yields the events of a binlog file."""
    at = MAGIC_BYTES
    while at + HEADER_BYTES <= len(data):
        length = int.from_bytes(data[at + LENGTH_AT : at + LENGTH_AT + 4], "little")
        yield data[at : at + length]
        at += length


def _staged_rows(
    events: list[bytes], folder: Path, events_max: int, tables: dict[str, TableVersion], *, rows_queries: bool
) -> int:
    """Stages binlog events, and converts them to a consumer's entries. Adds the versions of their tables to `tables` by name. Returns the
    number of staged rows. With `rows_queries`, the entries include the SQL text of statements.
    """
    captured = TableFilter(r".*\..*", "")
    history = TableHistory(folder / "schema.jsonl", captured.keeps)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour=MYSQL, charset="utf8mb4"), databases=(), tables=()), START)
    store = MemoryEventStore(folder / "spill", events_max=events_max, start=START)
    window = Window(START, bytes_max=limits.RING_BYTES_MAX)
    sink = EventSink(store, captured, window)
    form = StreamForm(rows_queries=rows_queries)
    framer = PacketFramer(Scanner(start=START, history=history, captured=captured.keeps, form=form))
    rows = 0
    for event in events:
        packet = struct.pack("<I", len(event) + 1)[:3] + b"\0\0" + event
        framer.space()[: len(packet)] = packet
        for block in framer.received(len(packet)):
            sink.accept(block)
        rows += _taken_rows(store, folder, tables)
    show_entries(window, captured)
    return rows


def show_entries(window: Window, captured: TableFilter) -> int:
    """Converts everything in the window to entries, and to messages for a broker. Returns the size of the entries in bytes."""
    tables = CapturedTables([captured])
    selection = Selection(tables=tables, wants=wanted_statements(tables), entries=ShownEntries(rows_queries=True))
    entries, position, shown = EntryMaker(Display(), described), StreamPosition(WindowPosition(window.begin)), 0
    hashed = Routing(Rules(topic="all", partition_hash=r".*\..*:$pk$", partitions_num=3))
    with_schemas = (Subjects(MemoryRegistry(form.schema_type), form, by_record=True) for form in (AVRO, PROTOBUF))
    forms = (*FORMATS, *with_schemas)
    makers = [MessageMaker(hashed, form, display=Display(), describe=described) for form in forms]
    while (
        reading := window.read(position.window_position, limits.READ_BUFFER_BYTES, limits.BATCH_EVENTS_MAX)
    ) and reading.pieces:
        chosen, state = selection.chosen(reading.pieces, position.state)
        shown += len(entries.messages(chosen))
        for maker in makers:
            maker.messages(chosen, 1)
        position = StreamPosition(reading.end, state)
    return shown


def _taken_rows(store: MemoryEventStore, folder: Path, tables: dict[str, TableVersion]) -> int:
    """Stages and acks the complete batches in the store. Returns the number of their rows."""
    rows = 0
    while not (batch := store.get(limits.BATCH_BYTES_MAX, limits.BATCH_EVENTS_MAX)).empty:
        tables.update({table.table: table for part in batch.slices for table in part.block.tables})
        rows += stage(batch, "rehearsal", 1, folder / "staging").manifest.rows
        if batch.end is not None:
            store.ack(batch.end)
    return rows


if __name__ == "__main__":
    sys.stdout.write(f"{rehearse(Path(sys.argv[1]))}\n")
