"""Gives damaged binlog bytes to all code that reads binlogs, for `sluice bench fuzz`. `tests/fidelity` runs this module for a shorter time.

Real servers write the corpus. Each run reads the corpus in a separate process, so that this process detects a crash of the interpreter, an
endless loop and a memory leak. One run uses the kernels as the engine does. In the other run, numba checks every array index
(NUMBA_BOUNDSCHECK).
"""

from __future__ import annotations

import dataclasses
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fuzzing.damage import without_checksums
from sluice.console.toolchain.database.server import DatabaseServer

SILENCE_SECONDS_MAX = 240.0  # One round may take at most this long. The first round also compiles the kernels.
SERVERS = {
    "mysql-8.0.31": "SET SESSION binlog_transaction_compression = ON",
    "mariadb-11.4.5": "SET GLOBAL log_bin_compress = ON",
}
TABLES = (
    (
        "CREATE TABLE t (id INT PRIMARY KEY, a DECIMAL(20,5), b VARCHAR(300), c DATETIME(3), e ENUM('x','y'), f SET('p','q'), g BLOB,"
        " h TIME(6), i BIT(12), k DATE, l BIGINT UNSIGNED, m BINARY(8), n CHAR(200), o DOUBLE, p TIMESTAMP(2) NULL, q JSON, r YEAR)"
    ),
    "CREATE TABLE small (id INT, x INT)",
    "CREATE TABLE left_out (id INT PRIMARY KEY)",
)
ROW = (
    "({id}, -1.5, REPEAT('b', {id}), '2024-02-29 01:02:03.456', 'y', 'p,q', x'00ff', '-12:34:56.7', 5, '2024-01-01', 7, 'abc', 'char', 1.5,"
    ' NOW(), \'{{"a": [1, 2.5, "x", {{"k": null}}]}}\', 2024)'
)
CHANGES = (
    "DELETE FROM t",
    *(
        "INSERT INTO t VALUES " + ",".join(ROW.format(id=number) for number in range(base, base + 20))
        for base in (0, 100)
    ),
    *("UPDATE t SET b = NULL, id = id + 1000 WHERE id < 10", "UPDATE t SET o = o + 1", "DELETE FROM t WHERE id > 100"),
    *(
        "BEGIN",
        "INSERT INTO small (id, x) VALUES (1, 1), (2, 2)",
        "INSERT INTO left_out VALUES ({turn})",
        "UPDATE small SET x = 3",
        "COMMIT",
    ),
    *("XA START 'a'", "INSERT INTO small (id, x) VALUES (3, 3)", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'"),
    *("ALTER TABLE small ADD y{turn} TEXT", "FLUSH BINARY LOGS"),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A run that failed, with the seed and the round that reproduce it."""

    what: str
    seed: int
    round: int
    output: str

    def __str__(self) -> str:
        return f"seed {self.seed}, round {self.round}: {self.what}\n{self.output[-3000:]}"


def write_corpus(server: DatabaseServer, folder: Path) -> Path:
    """Makes a server write every kind of event that its binlog can contain. Stores these binlog files without checksums, and returns their
    path.
    """
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (
            "DROP DATABASE IF EXISTS fuzzed",
            "CREATE DATABASE fuzzed",
            "USE fuzzed",
            *TABLES,
            "FLUSH BINARY LOGS",
        ):
            cursor.execute(statement)
        cursor.execute("SHOW MASTER STATUS")
        first = str((cursor.fetchone() or ("",))[0])
        for index, setting in enumerate(("SET @plain = 1", SERVERS[server.version])):
            for statement in (setting, *CHANGES):
                cursor.execute(statement.replace("{turn}", str(index)))
        cursor.execute("SET GLOBAL log_bin_compress = OFF" if "mariadb" in server.version else "SET @done = 1")
    files = sorted(path for path in server.data_folder.rglob("binlog.0?????") if path.name >= first)
    corpus = folder / f"{server.version}.events"
    corpus.write_bytes(b"".join(without_checksums(path.read_bytes()) for path in files))
    return corpus


def fuzz(
    corpus: Path, seed: int, seconds: float, *, bounds: bool = False, first: int = 0
) -> tuple[Finding | None, int]:
    """Runs one process on a corpus. Returns its finding, or None, and the number of rounds. With `bounds`, every array index is checked."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        progress.write_bytes(struct.pack("<q", first))
        environment = dict(os.environ, PYTHONFAULTHANDLER="1")
        if bounds:
            environment |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": folder}
        arguments = [str(corpus), str(seed), str(first), str(seconds), str(progress)]
        with (Path(folder) / "output").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fuzzing.child", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=Path(__file__).parents[2],
            )
            what = _watch(process, progress)
            number = struct.unpack("<q", progress.read_bytes())[0]
            output.seek(0)
            return (Finding(what, seed, number, output.read()) if what else None), number - first


def _watch(process: subprocess.Popen[bytes], progress: Path) -> str:
    """Waits until the process ends. Returns why it failed, or "" if it did not fail."""
    last, since = b"", time.monotonic()
    while process.poll() is None:
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            now = progress.read_bytes()
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > SILENCE_SECONDS_MAX:
                process.kill()
                process.wait()
                return f"one round took longer than {SILENCE_SECONDS_MAX:.0f} s"
    code = process.returncode
    return "" if code == 0 else f"the process ended with {code}" + (" (a crash of the interpreter)" if code < 0 else "")


def run(seconds: float, seed: int) -> int:
    """Reads both corpora, with and without checked array indexes, for `seconds` in total. Prints the findings, and returns their number."""
    findings = 0
    with tempfile.TemporaryDirectory() as folder:
        for version in SERVERS:
            with DatabaseServer(version, Path(folder) / version) as server:
                corpus = write_corpus(server, Path(folder))
            for bounds in (False, True):
                finding, rounds = fuzz(corpus, seed, seconds / 4, bounds=bounds)
                findings += finding is not None
                checked = "bounds checked" if bounds else "as compiled"
                sys.stdout.write(f"{version}, {checked}: {rounds} rounds, {finding or 'nothing found'}\n")
    return findings
