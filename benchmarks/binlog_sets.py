"""The two binlogs that `bench engine` reads: single-row OLTP transactions and bulk multi-row statements, made inside the server.

Stored procedures make the load, so that making it costs no client round trips; the rows are sysbench's (`id, k, c, pad`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

TABLE = "CREATE TABLE {name} (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL)"
ROW = "FLOOR(RAND({seed}) * 1000000), LEFT(SHA2(CONCAT('c', {seed}), 512), 119), SHA2(CONCAT('p', {seed}), 224)"

OLTP = """
CREATE PROCEDURE oltp(transactions INT)
BEGIN
  DECLARE i, target INT DEFAULT 0;
  WHILE i < transactions DO
    SET target = 1 + FLOOR(RAND() * i / 4);  -- RAND() in WHERE would scan the table
    CASE i % 4
      WHEN 0 THEN INSERT INTO oltp_1 (k, c, pad) VALUES ({row});
      WHEN 1 THEN INSERT INTO oltp_2 (k, c, pad) VALUES ({row});
      WHEN 2 THEN UPDATE oltp_1 SET k = k + 1 WHERE id = target;
      ELSE UPDATE oltp_2 SET c = LEFT(SHA2(CONCAT('u', i), 512), 119) WHERE id = target;
    END CASE;
    SET i = i + 1;
  END WHILE;
END
"""

BULK = """
INSERT INTO bulk_1 (k, c, pad)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT {row} FROM n
"""


@dataclasses.dataclass(frozen=True)
class BinlogSet:
    """A stretch of one server's binlog: from (file, start) to (file, end), with what is in it."""

    name: str
    file: str
    start: int
    end: int
    rows: int
    transactions: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


def position(cursor: Any) -> tuple[str, int]:
    cursor.execute("SHOW MASTER STATUS")
    file, offset, *_ = cursor.fetchone()
    return str(file), int(offset)


def prepare(cursor: Any) -> None:
    """Tables and procedures, outside the measured stretches."""
    cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
    cursor.execute("USE bench")
    for name in ("oltp_1", "oltp_2", "bulk_1"):
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
        cursor.execute(TABLE.format(name=name))
    cursor.execute("DROP PROCEDURE IF EXISTS oltp")
    cursor.execute(OLTP.format(row=ROW.format(seed="i")))
    cursor.execute("SET SESSION cte_max_recursion_depth = 10000000")


def make_oltp(cursor: Any, transactions: int) -> BinlogSet:
    """Single-row transactions, half inserts and half updates, in a binlog file of their own."""
    cursor.execute("FLUSH BINARY LOGS")
    file, start = position(cursor)
    cursor.execute("CALL oltp(%s)", (transactions,))
    end_file, end = position(cursor)
    assert end_file == file, "the set must fit one binlog file: raise max_binlog_size"
    return BinlogSet("oltp", file, start, end, transactions, transactions)


def make_bulk(cursor: Any, rows: int, statements: int) -> BinlogSet:
    """Multi-row inserts and updates of `rows / statements` rows each, in a binlog file of their own."""
    cursor.execute("FLUSH BINARY LOGS")
    file, start = position(cursor)
    made = 0
    for number in range(statements):
        if number % 3 == 2:
            made += cursor.execute("UPDATE bulk_1 SET k = k + 1 ORDER BY id LIMIT %s", (rows // statements,))
        else:
            made += cursor.execute(BULK.format(rows=rows // statements, row=ROW.format(seed="i")))
    end_file, end = position(cursor)
    assert end_file == file, "the set must fit one binlog file: raise max_binlog_size"
    return BinlogSet("bulk", file, start, end, made, statements)
