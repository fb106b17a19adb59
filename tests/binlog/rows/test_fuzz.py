"""Damages events that a real server wrote. Whatever the bytes, the decoder returns rows or raises one of its errors.

All data is between guard bytes, so a read outside the event would read wrong values. If an event was only shortened, its rows must be a
beginning of the true rows.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.contracts import Block, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_binlog import Recording, block_of, execute

pytestmark = pytest.mark.servers

ROUNDS = 4000
TABLE = """
CREATE TABLE t (id int PRIMARY KEY, a decimal(20,5), b varchar(300), c datetime(3), d json, e enum('x','y'), f set('p','q'),
  g blob, h time(6), i bit(12), j text CHARACTER SET latin1, k date, l bigint unsigned, m binary(8), n char(200), o double,
  p timestamp(2) NULL, q decimal(60,10))
"""
ROW = (
    "({id}, -12.5, REPEAT('ü', {id}), '2024-02-29 01:02:03.456', '{{\"a\": [1, 2.5, \"x\"]}}', 'y', 'p,q', x'00ff', '-12:34:56.7',"
    " 5, 'lätin', '2024-01-01', 18446744073709551615, 'abc', 'char', 1.5, '2024-01-01 00:00:00.12', 1.5)"
)


@pytest.fixture(scope="module")
def written(mysql80: DatabaseServer) -> Block:
    with mysql80.connect() as connection:
        execute(connection, "DROP DATABASE IF EXISTS fuzz", "CREATE DATABASE fuzz", "USE fuzz", TABLE)
        recording = Recording.begin(mysql80)
        execute(connection, "INSERT INTO t VALUES " + ",".join(ROW.format(id=number) for number in range(8)))
        execute(connection, "UPDATE t SET id = id + 100, b = NULL WHERE id < 3", "DELETE FROM t WHERE id > 5")
        differences = "UPDATE t SET d = JSON_SET(d, '$.a[1]', 7, '$.n', 'new')"
        execute(connection, "SET binlog_row_value_options = PARTIAL_JSON", differences)
    return recording.block()


def damaged(block: Block, chance: random.Random) -> tuple[bytes, int, int]:
    """Returns (bytes of one event after some were changed, its kind, its version). The event may be shortened."""
    index = chance.randrange(block.event_count)
    start = int(block.event_offset[index])
    data = bytearray(block.buffer[start : start + int(block.event_length[index])].tobytes())
    for _ in range(chance.randrange(4)):
        data[chance.randrange(19, len(data))] = chance.choice([0, 0xFF, 0x80, chance.randrange(256)])
    if chance.random() < 0.5:
        del data[chance.randrange(len(data)) :]
    return bytes(data), int(block.event_kind[index]), int(block.event_version[index])


def decode(version: TableVersion, data: bytes, kind: int, event_version: int) -> list[dict[str, Any]]:
    guarded = b"\xee" * 64 + data + b"\xee" * 4096
    block = block_of(guarded, "binlog.000001", 1, [version], [(64, len(data), kind, event_version, 0, 4, 0)])
    rows = []
    for batch in RowDecoder(version).chunks(block, np.arange(1)):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def test_damaged_events_end_in_rows_or_in_one_of_the_errors(written: Block) -> None:
    chance = random.Random(20)  # noqa: S311 - test data
    outcomes = {"rows": 0, "refused": 0}
    for _ in range(ROUNDS):
        try:
            decode(written.tables[0], *damaged(written, chance))
            outcomes["rows"] += 1
        except (BinlogFormatError, TableStoppedError):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > ROUNDS // 20, outcomes


def test_a_truncated_event_is_refused_or_gives_its_first_rows(written: Block) -> None:
    start, length = int(written.event_offset[0]), int(written.event_length[0])
    data = written.buffer[start : start + length].tobytes()
    whole = decode(written.tables[0], data, int(written.event_kind[0]), int(written.event_version[0]))
    assert len(whole) == 8
    for size in range(length):
        try:
            rows = decode(written.tables[0], data[:size], int(written.event_kind[0]), int(written.event_version[0]))
        except BinlogFormatError:
            continue
        assert rows == whole[: len(rows)]
        assert len(rows) < len(whole)
