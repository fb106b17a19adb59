"""Damages recorded binlog events and reads them, round after round, for a given time. `fuzz` starts this module as a process and watches
it.

The events have no checksums, because a checksum would detect every damage. Each round must end with rows, or with an error of the engine
that names its position.

`python -m benchmarks.fuzzing.child CORPUS SEED FIRST SECONDS PROGRESS`. CORPUS contains the events of whole binlog files without checksums.
The number of a round is written to PROGRESS before the round, so that `fuzz` knows which round crashed.
"""

from __future__ import annotations

import gc
import mmap
import random
import resource
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.fuzzing.damage import Event, damaged, events_of
from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.block import compact
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.contracts import NO_SESSION, Block, Bytes, Column, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, SluiceError, TableStoppedError
from sluice.cdc_engine.parser.scan.framing import PacketFramer
from sluice.cdc_engine.parser.scan.scanner import Scanner, StreamForm
from sluice.cdc_engine.position import Position

START = Position(epoch=1, file="binlog.000001", offset=4)
ADDRESS_BYTES_MAX = 8 << 30
RESIDENT_BYTES_MAX = 2 << 30
PACKET_MAX = 0xFFFFFF
COLLECT_ROUNDS = 64
LABELS = tuple("abcdefgh")


class NamelessHistory:
    """A schema history that accepts every table as its table map describes it. Columns are named by their numbers, and the first column
    is the key.
    """

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002  of the contract
        return ()

    def is_undone(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return True

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return False

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:  # noqa: ARG002  of the contract
        columns = [
            Column(
                name=f"c{index}",
                type_code=int(code),
                metadata=table_map.metadata[index],
                charset="utf8mb4",
                labels=LABELS,
            )
            for index, code in enumerate(table_map.type_codes)
        ]
        return TableVersion(
            database=table_map.database, table=table_map.table, columns=tuple(columns), key=("c0",) if columns else ()
        )

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        del statement, default_database, position, session
        return ()

    def rewind(self, position: Position) -> None:
        """Does nothing, because this history has no state."""


def captured(database: str, table: str) -> bool:
    return not database.startswith("mysql") and table != "left_out"


def as_packets(stream: bytes, events: list[Event]) -> bytes:
    """Returns the events as the packets of a dump. The lengths in the packet headers are correct, even if the lengths in the events are
    damaged.
    """
    sent, at = bytearray(), 0
    for event in events:
        payload = b"\0" + stream[at : at + len(event)]
        at += len(event)
        for begin in range(0, len(payload) + 1, PACKET_MAX):
            part = payload[begin : begin + PACKET_MAX]
            sent += struct.pack("<I", len(part))[:3] + b"\x01" + part
    return bytes(sent)


def blocks_of(stream: bytes, events: list[Event], chance: random.Random) -> list[Block]:
    """Returns the blocks that the engine makes of the events. The engine scans the events directly, or from packets that arrive in
    pieces of any size.
    """
    naked = chance.random() < 0.5
    scanner = Scanner(
        start=START,
        history=NamelessHistory(),
        captured=captured,
        checksum=False,
        executed_known=False,
        form=StreamForm(packets=not naked),
    )
    blocks: list[Block] = []
    if naked:
        buffer: Bytes = np.frombuffer(stream, np.uint8)
        blocks.extend(scanner.feed(buffer, 0, len(buffer)))
        return blocks
    framer = PacketFramer(scanner, chance.choice([64, 1000, 1 << 16]))
    data, at = as_packets(stream, events), 0
    if chance.random() < 0.3:
        at_byte = chance.randrange(len(data))
        data = data[:at_byte] + bytes([chance.randrange(256)]) + data[at_byte + 1 :]
    while at < len(data) and framer.answer is None:
        space = framer.space()
        count = min(len(space), len(data) - at, chance.choice([1, 100, 1 << 20]))
        space[:count] = data[at : at + count]
        blocks.extend(framer.received(count))
        at += count
    return blocks


def check_and_decode(block: Block) -> None:
    """Decodes a block. Raises AssertionError if an offset, length or position in the block is impossible."""
    if block.event_count:
        ends = block.event_offset + block.event_length
        assert int(block.event_offset.min()) >= 0
        assert int(ends.max()) <= len(block.buffer)
        assert bool((np.diff(block.event_position) >= 0).all())
    for index in np.unique(block.event_table):
        try:
            decoder = RowDecoder(block.tables[index])
            for rows in decoder.chunks(compact(block), np.flatnonzero(block.event_table == index)):
                rows.validate(full=True)
        except TableStoppedError:
            continue


def attempt(events: list[Event], chance: random.Random) -> str:
    """Runs one round and returns its result. Any error that is not a SluiceError ends the process."""
    limits.READ_BUFFER_BYTES = chance.choice([500, 1 << 14, 4 << 20])
    parts = damaged(events, chance)
    stream = b"".join(parts)
    try:
        for block in blocks_of(stream, parts, chance):
            check_and_decode(block)
    except BinlogFormatError as error:
        return type(error).__name__ if not error.file or error.offset >= 0 else _without_position(error)
    except SluiceError as error:
        return type(error).__name__
    return "read"


def _without_position(error: BinlogFormatError) -> str:
    raise AssertionError(f"{error!r} names no place")


def main() -> None:
    corpus, seed, first, seconds, progress = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES_MAX, ADDRESS_BYTES_MAX))
    pa.set_cpu_count(1)
    events, number, outcomes = events_of(Path(corpus).read_bytes()), int(first), dict[str, int]()
    with Path(progress).open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
        for block in blocks_of(b"".join(events), events, random.Random(3)):
            check_and_decode(block)
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            counter[:] = struct.pack("<q", number)
            outcome = attempt(events, random.Random(int(seed) << 32 | number))
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            number += 1
            if number % COLLECT_ROUNDS == 0:
                gc.collect()  # Frees the buffers, which would otherwise accumulate over hundreds of rounds.
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            assert resident < RESIDENT_BYTES_MAX, f"{resident} bytes of memory"
    sys.stdout.write(f"{outcomes}\n")


if __name__ == "__main__":
    main()
