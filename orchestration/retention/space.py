"""Shrinks Dagster's SQLite files by returning their free pages to the file system. Databases in Postgres are not changed.

A VACUUM copies the whole file while all writers wait. So each file gets only one VACUUM: a small file at its first check, and a larger file
as soon as enough of it is free. This VACUUM also switches on SQLite's incremental vacuum. From then on, free pages are returned in small
steps.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

INCREMENTAL = 2  # SQLite's number for the incremental mode of auto_vacuum.
# A file up to this size gets its only VACUUM at its first check, even if few of its bytes are free, because SQLite copies it in about a
# second.
SMALL_BYTES_MAX = 64 * 2**20
# A file is shrunk only if at least this many of its bytes, and at least this part of it, are free. Fewer free bytes are not worth the work,
# because SQLite soon reuses them. Only the first VACUUM of a small file does not depend on these limits.
FREE_BYTES_MIN = 16 * 2**20
FREE_PART_MIN = 0.25
PAGES_AT_ONCE = 1000
# How long to wait until another writer releases its lock of the file. After that, this run leaves the file as it is, and the next run of
# the job tries again. Dagster's own writers wait up to 30 s for a lock.
WAIT_SECONDS = 5.0


def give_back(file: str) -> int:
    """Shrinks a SQLite file by its free pages. Does this only if enough pages are free (FREE_BYTES_MIN and FREE_PART_MIN), or if the file
    is small and had no VACUUM yet. Returns the number of bytes by which the file shrank. Returns 0 if there is nothing to do, if the file
    does not exist, or if another writer locks it for WAIT_SECONDS.
    """
    if not Path(file).is_file():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=WAIT_SECONDS, isolation_level=None)) as database:
            before = _bytes(database)
            _shrink(database)
            return max(0, before - _bytes(database))
    except sqlite3.OperationalError:  # Another writer locks the file, so the next run of the job tries again.
        return 0


def _shrink(database: sqlite3.Connection) -> None:
    total, free = _bytes(database), _number(database, "freelist_count")
    free_bytes = free * _number(database, "page_size")
    worth = free_bytes >= FREE_BYTES_MIN and free_bytes >= FREE_PART_MIN * total
    if _number(database, "auto_vacuum") != INCREMENTAL:
        if worth or total <= SMALL_BYTES_MAX:
            database.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
            database.execute("VACUUM")
    elif worth:
        for _ in range(free // PAGES_AT_ONCE + 1):
            database.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE});")  # `execute` frees only one page.
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _bytes(database: sqlite3.Connection) -> int:
    return _number(database, "page_count") * _number(database, "page_size")


def _number(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(f"PRAGMA {name}").fetchone()[0])
