"""Oracle: the temporal formats from before MySQL 5.6, as MariaDB still writes them with mysql56_temporal_format=OFF."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cdc_engine.binlog.rows import RowDecoder
from cdc_engine.contracts import Block
from cdc_engine.errors import TableStoppedError
from console.toolchain.servers import DatabaseServer
from tests.fix_binlog import Recording, execute


@pytest.fixture
def written(mariadb114: DatabaseServer) -> Iterator[tuple[Block, list[tuple[str | None, ...]]]]:
    """Row events of a table without fractions and of one with them, and what SELECT prints of the first."""
    with mariadb114.connect(conv={}) as connection, connection.cursor() as cursor:
        execute(connection, "DROP DATABASE IF EXISTS old_formats", "CREATE DATABASE old_formats", "USE old_formats")
        execute(connection, "SET time_zone = '+00:00'", "SET GLOBAL mysql56_temporal_format = OFF")
        try:
            execute(connection, "CREATE TABLE plain (id int PRIMARY KEY, a datetime, b timestamp NULL, c time)")
            execute(connection, "CREATE TABLE fractions (id int PRIMARY KEY, a datetime(3))")
        finally:
            execute(connection, "SET GLOBAL mysql56_temporal_format = ON")
        recording = Recording.begin(mariadb114)
        execute(
            connection,
            "INSERT INTO plain VALUES (1, '2024-02-29 01:02:03', '2024-02-29 01:02:03', '-12:34:56'), (2, NULL, NULL, '838:59:59'), "
            "(3, '9999-12-31 23:59:59', '2038-01-19 03:14:07', '00:00:00')",
            "INSERT INTO fractions VALUES (1, '2024-02-29 01:02:03.5')",
        )
        cursor.execute("SELECT a, b, c FROM plain ORDER BY id")
        yield recording.block(), list(cursor.fetchall())


def test_old_formats_are_what_select_returns_oracle(written: tuple[Block, list[tuple[str | None, ...]]]) -> None:
    block, selected = written
    (batch,) = RowDecoder(block.tables[0]).chunks(block, np.array([0]))
    decoded = [(row["a"], row["b"], row["c"]) for row in batch.to_pylist()]
    assert [(a and f"{a:%Y-%m-%d %H:%M:%S}", b and f"{b:%Y-%m-%d %H:%M:%S}", c) for a, b, c in decoded] == selected


def test_old_formats_with_a_fraction_stop_their_table_oracle(
    written: tuple[Block, list[tuple[str | None, ...]]],
) -> None:
    with pytest.raises(TableStoppedError, match=r"TYPE_UNSUPPORTED.*datetime\(3\).*mysql56_temporal_format=ON"):
        RowDecoder(written[0].tables[1])
