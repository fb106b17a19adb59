"""Records the binlog and the result of a SELECT that `cdc_engine/instance/rehearsal.py` decodes.

Command: `python -m tests.instance.record_rehearsal`. A new recording is needed only if a kind of column or event gets a kernel that the
recording does not reach. A test reports that.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.binlog.result_rows.decoder import ResultDecoder
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.instance.rehearsal import RECORDING, RESULT, SELECTED
from sluice.cdc_engine.snapshot.reader import RowReader, open_reader
from sluice.cdc_engine.snapshot.statements import quoted, rows_statement
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import read_snapshot
from sluice.console.toolchain.database.server import DatabaseServer

COLUMNS = """
    id BIGINT UNSIGNED PRIMARY KEY, tiny TINYINT, small SMALLINT UNSIGNED, medium MEDIUMINT, whole INT, large BIGINT,
    flag BIT(1), bits BIT(40), price DECIMAL(12,4), digits DECIMAL(65,30), ratio FLOAT, exact_ratio DOUBLE,
    day DATE, moment DATETIME, moment6 DATETIME(6), stamp TIMESTAMP NULL, stamp3 TIMESTAMP(3) NULL, span TIME, span6 TIME(6),
    year_of YEAR, code CHAR(5), name VARCHAR(40), note TEXT, long_note LONGTEXT, latin VARCHAR(20) CHARSET latin1,
    chinese VARCHAR(20) CHARSET gbk, wide VARCHAR(20) CHARSET utf16, fixed BINARY(6), raw VARBINARY(20), blob_of BLOB,
    kind ENUM('a','b'), kinds SET('x','y','z'), document JSON, place POINT
"""
ROW = """(
    {id}, -1, 65535, -8388608, 7, -9223372036854775808, b'1', b'1011', 12.3456, -1.5, 0.1, 1e300,
    '2024-02-29', '2024-02-29 12:00:00', '1999-12-31 23:59:59.999999', '2024-01-01 00:00:00', '2024-01-01 00:00:00.125', '-838:59:59',
    '12:34:56.789', 2024, 'abc', 'näme', 'text', REPEAT('long', 200), 'é', '中文', 'wide', 'ab', 'raw', x'00ff',
    'b', 'x,z', '{{"a": [1, 2.5, "three", null, true]}}', POINT(1, 2))"""
NULLS = "({id}" + ", NULL" * 33 + ")"


def statements(database: str) -> list[str]:
    """Returns statements for tables with every kind of column, with and without a key. They insert, update, change a key, delete, and
    write a transaction with many events.
    """
    rows = ", ".join([ROW.format(id=1), ROW.format(id=2), NULLS.format(id=3)])
    return [
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.everything ({COLUMNS})",
        f"CREATE TABLE {database}.keyless (n INT, word VARCHAR(20))",
        f"CREATE TABLE {database}.composed (a INT, b VARCHAR(20), c DATE, PRIMARY KEY (a, b))",
        f"CREATE TABLE {database}.partial_images (a INT PRIMARY KEY, b VARCHAR(20), c DATE)",
        f"INSERT INTO {database}.everything VALUES {rows}",
        f"UPDATE {database}.everything SET whole = 8, name = NULL",
        f"UPDATE {database}.everything SET id = id + 10",
        f"DELETE FROM {database}.everything WHERE id = 13",
        f"INSERT INTO {database}.keyless VALUES (1, 'one'), (2, NULL)",
        f"UPDATE {database}.keyless SET word = 'two'",
        f"DELETE FROM {database}.keyless",
        "BEGIN",
        *(f"INSERT INTO {database}.composed VALUES ({n}, 'b{n}', '2024-01-01')" for n in range(9)),
        f"UPDATE {database}.composed SET b = 'other', c = NULL",
        f"INSERT INTO {database}.everything VALUES {ROW.format(id=99)}",
        f"DELETE FROM {database}.everything WHERE id = 99",
        "COMMIT",
        "SET SESSION binlog_transaction_compression = ON",
        f"INSERT INTO {database}.composed SELECT a + 100, REPEAT('z', 20), c FROM {database}.composed",
        "SET SESSION binlog_transaction_compression = OFF",
        "SET SESSION binlog_row_image = MINIMAL",
        f"INSERT INTO {database}.partial_images (a, b) VALUES (1, 'b'), (2, 'c')",
        f"UPDATE {database}.partial_images SET c = '2024-01-01'",
        f"UPDATE {database}.partial_images SET a = a + 10 ORDER BY a DESC",
        f"DELETE FROM {database}.partial_images",
        "SET SESSION binlog_row_image = FULL",
        f"CREATE TABLE {database}.partial_documents (a INT PRIMARY KEY, d JSON)",
        f"""INSERT INTO {database}.partial_documents VALUES (1, JSON_OBJECT('a', 1, 'pad', REPEAT('p', 200)))""",
        "SET SESSION binlog_row_value_options = PARTIAL_JSON",
        f"UPDATE {database}.partial_documents SET d = JSON_SET(d, '$.a', 2)",
        "SET SESSION binlog_row_value_options = ''",
        "SET SESSION binlog_rows_query_log_events = ON",
        f"INSERT INTO {database}.keyless VALUES (3, 'three')",
        "SET SESSION binlog_rows_query_log_events = OFF",
    ]


def run_all(server: DatabaseServer, lines: list[str]) -> None:
    """Executes the lines in one session."""
    with server.connect() as connection, connection.cursor() as cursor:
        for line in lines:
            cursor.execute(line)


def record(folder: Path, write: Callable[[bytes], object]) -> None:
    """Runs the statements on a new server, and passes the content of the server's binlog file to `write`."""
    server = DatabaseServer("mysql-8.0.31", folder, options={"binlog_row_metadata": "FULL"})
    with server:
        run_all(server, ["RESET MASTER", *statements("rehearsal"), "FLUSH BINARY LOGS"])
        write((server.data_folder / "binlog.000001").read_bytes())


def record_result(folder: Path, write: Callable[[bytes], object]) -> None:
    """Records what a server sends for a chunk of the table as it is after the statements."""
    with DatabaseServer("mysql-8.0.31", folder) as server:
        run_all(server, statements("rehearsal"))
        source = Source(destination="rehearsal", host="127.0.0.1", port=server.port, user="root")
        with contextlib.closing(server.connect()) as connection, contextlib.closing(open_reader(source)) as reader:
            found = read_snapshot(connection, lambda database, _: database == "rehearsal")
            (table,) = (each.version() for each in found.tables if each.table == SELECTED)
            write(_sent(reader, table))


def _sent(reader: RowReader, table: TableVersion) -> bytes:
    decoder, taken = ResultDecoder(table), bytearray()
    requested = decoder.select_list([quoted(column.name) for column in decoder.columns])
    with reader.selecting(rows_statement(table, requested, None, ((), ()), "")) as result:
        receive = result.receive

        def keeping(space: memoryview) -> int:
            count = receive(space)
            taken.extend(space[:count])
            return count

        result.receive = keeping
        result.sent_columns()
        for _ in result.batches(decoder):
            pass
    return bytes(taken)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder) / "binlog", RECORDING.write_bytes)
        record_result(Path(folder) / "result", RESULT.write_bytes)
