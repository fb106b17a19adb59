"""Compares doubles in JSON documents: MySQL 8.0 writes them, Sluice decodes them from the binlog, and each text must be the one that
SELECT prints.
"""

from __future__ import annotations

import json
import math
import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_binlog import Recording, execute

pytestmark = pytest.mark.servers


def doubles(count: int) -> list[float]:
    """Returns doubles of every size: random bits, random decimals, and numbers near those at which MySQL changes the form of the text."""
    chance = random.Random(7)  # noqa: S311 - test data
    bits = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(count)]
    plain = [round(chance.uniform(-1e6, 1e6), chance.randrange(7)) for _ in range(count)]
    sized = [
        float(f"{chance.choice(['', '-'])}{chance.randrange(1, 10**digits)}e{power}")
        for power in range(-25, 26)
        for digits in (1, 5, 17)
    ]
    chosen = [0.0, -0.0, 1e15, 1e16, 1e-14, 1e-15, 1e-16, *bits, *plain, *sized]
    return [number for number in chosen if math.isfinite(number) and abs(number) < 1e308]


def test_a_double_in_a_document_has_the_text_that_the_server_prints(mysql80: DatabaseServer) -> None:
    written = doubles(2000)
    with mysql80.connect() as connection:
        execute(
            connection,
            "DROP DATABASE IF EXISTS json_oracle",
            "CREATE DATABASE json_oracle",
            "CREATE TABLE json_oracle.t (id int PRIMARY KEY, document json)",
        )
        recording = Recording.begin(mysql80)
        with connection.cursor() as cursor:
            rows = [(number, json.dumps([double])) for number, double in enumerate(written)]
            cursor.executemany("INSERT INTO json_oracle.t VALUES (%s, %s)", rows)
        connection.commit()
        block = recording.block()
        with connection.cursor() as cursor:
            cursor.execute("SELECT CAST(document AS CHAR) FROM json_oracle.t ORDER BY id")
            printed = [row[0] for row in cursor.fetchall()]
    chosen = np.flatnonzero([block.tables[index].name == "json_oracle.t" for index in block.event_table])
    table = pa.Table.from_batches(RowDecoder(block.tables[block.event_table[chosen[0]]]).chunks(block, chosen))
    decoded = table.column("document").to_pylist()
    assert len(decoded) == len(written)
    assert [(ours, theirs) for ours, theirs in zip(decoded, printed, strict=True) if ours != theirs] == []
