"""Runs the readers with which `bench engine` compares Sluice: a bare socket, mysql-replication and mysql-binlog-connector-java.

The libraries are used as their manuals show. Each function takes connection settings and a BinlogSet, reads exactly the range of the set,
and measures the seconds.
"""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from benchmarks.binlog_sets import BinlogSet
from sluice.console.commands.screen import standard_output
from sluice.console.toolchain.setup import set_up

COM_BINLOG_DUMP = 0x12
# With this flag, the server sends an EOF packet at the end of its binlog, instead of waiting for changes.
NON_BLOCKING = 0x01
READ_BYTES = 4 << 20
# This program is a single Java file, which Java compiles at each start.
JAVA_PROGRAM = Path(__file__).with_name("JavaConnector.java")
JAVA_SECONDS_MAX = 600.0


def raw_socket_seconds(settings: dict[str, Any], binlog: BinlogSet) -> float:
    """Receives the dump into one buffer and discards it. No reader can be faster than this on the same socket."""
    connection: Any = pymysql.connect(**settings)  # The dump needs private methods of the connection.
    with connection.cursor() as cursor:
        cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
    body = struct.pack("<BIHI", COM_BINLOG_DUMP, binlog.start, NON_BLOCKING, 4_000_001) + binlog.file.encode()
    connection._write_bytes(struct.pack("<I", len(body)) + body)
    buffer = memoryview(bytearray(READ_BYTES))
    received, begun = 0, time.perf_counter()
    while received < binlog.bytes:
        count = connection._sock.recv_into(buffer)
        if count == 0:
            raise RuntimeError(f"the server ended the dump after {received} of {binlog.bytes} bytes")
        received += count
    seconds = time.perf_counter() - begun
    connection._force_close()
    return seconds


def mysql_replication_rows(settings: dict[str, Any], binlog: BinlogSet, seconds_max: float) -> tuple[int, float]:
    """Reads with `for event in stream: event.rows`. Returns (rows, seconds). The measurement stops after `seconds_max`, because the
    library's rate is constant and a longer time would not change it.
    """
    stream = BinLogStreamReader(
        connection_settings=settings,
        server_id=4_000_002,
        log_file=binlog.file,
        log_pos=binlog.start,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        ignore_decode_errors=True,  # The library decodes VARBINARY as text, which can fail.
    )
    rows, begun = 0, time.perf_counter()
    try:
        for event in stream:
            rows += len(event.rows)
            if time.perf_counter() - begun > seconds_max:
                break
    finally:
        seconds = time.perf_counter() - begun
        stream.close()
    return rows, seconds


def java_connector_rows(settings: dict[str, Any], binlog: BinlogSet) -> tuple[int, float]:
    """Decodes events to rows, and leaves JSON as bytes. Reads the set twice in one process, and returns (rows, seconds) of the second
    time.
    """
    toolchain = set_up([], delta=False, extras=("java-connector",), screen=standard_output())
    java, classes = toolchain.java, ":".join(map(str, toolchain.extra_jars))
    address = [settings["host"], str(settings["port"]), settings["user"]]
    tls = [] if settings.get("ssl_disabled") else ["tls"]
    done = subprocess.run(
        [
            str(java.program),
            "-cp",
            classes,
            str(JAVA_PROGRAM),
            *address,
            binlog.file,
            str(binlog.start),
            str(binlog.end),
            *tls,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=JAVA_SECONDS_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"mysql-binlog-connector-java did not read {binlog.name} (it needs a JDK): {done.stderr}")
    rows, nanoseconds = map(int, done.stdout.split())
    return rows, nanoseconds / 1e9
