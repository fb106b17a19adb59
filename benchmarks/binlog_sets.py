"""Creates the binlogs that `bench engine` reads: single-row transactions, bulk statements, and tables with varied and with many columns.

The server itself creates the load, by stored procedures and multi-row statements, so clients do not slow it down. In the first two sets,
rows have sysbench's columns (`id, k, c, pad`). The varied table has a column of each kind that applications use. The wide table has 14
columns, one of which is a JSON document of 14 values.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pymysql

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

VARIED_TABLE = """
CREATE TABLE varied_1 (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, ratio DOUBLE, price DECIMAL(12,2) NOT NULL,
  name VARCHAR(60) NOT NULL, note TEXT, made DATETIME(3) NOT NULL, changed TIMESTAMP(6) NOT NULL, details JSON,
  state ENUM('new','paid','sent','returned') NOT NULL, token VARBINARY(20) NOT NULL
) CHARACTER SET utf8mb4
"""
DETAILS = "JSON_OBJECT('lines', i % 9, 'weight', i / 8e0, 'city', 'Köln', 'tags', JSON_ARRAY('a', NULL, TRUE, CONCAT('t', i)))"

VARIED = f"""
INSERT INTO varied_1 (customer, ratio, price, name, note, made, changed, details, state, token)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {{rows}})
SELECT FLOOR(RAND(i) * 1000000), RAND(i), RAND(i) * 10000, CONCAT('Kundin 日本 ', i), IF(i % 5, SHA2(CONCAT('n', i), 256), NULL),
  TIMESTAMP '2020-01-01 00:00:00' + INTERVAL i * 1000 MICROSECOND, NOW(6), {DETAILS}, 1 + i % 4, LEFT(UNHEX(SHA2(i, 256)), 20) FROM n
"""

WIDE_TABLE = """
CREATE TABLE wide_1 (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, shop SMALLINT NOT NULL, ratio DOUBLE,
  price DECIMAL(12,2) NOT NULL, tax DECIMAL(5,2), name VARCHAR(60) NOT NULL, city VARCHAR(40), note TEXT, made DATETIME(3) NOT NULL,
  changed TIMESTAMP(6) NOT NULL, details JSON, state ENUM('new','paid','sent','returned') NOT NULL, token VARBINARY(20) NOT NULL
) CHARACTER SET utf8mb4
"""
WIDE_DETAILS = """JSON_OBJECT('lines', i % 9, 'weight', i / 8e0, 'gift', i % 2 = 0, 'coupon', NULL, 'channel', 'web', 'user', i * 7,
  'address', JSON_OBJECT('street', CONCAT('Straße ', i), 'number', i % 200, 'city', 'Köln', 'country', 'DE'),
  'tags', JSON_ARRAY('a', 'b', CONCAT('t', i), i % 5))"""
WIDE = f"""
INSERT INTO wide_1 (customer, shop, ratio, price, tax, name, city, note, made, changed, details, state, token)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {{rows}})
SELECT FLOOR(RAND(i) * 1000000), i % 300, RAND(i), RAND(i) * 10000, i % 20, CONCAT('Kundin 日本 ', i), CONCAT('Ort ', i % 5000),
  IF(i % 5, SHA2(CONCAT('n', i), 256), NULL), TIMESTAMP '2020-01-01 00:00:00' + INTERVAL i * 1000 MICROSECOND, NOW(6), {WIDE_DETAILS},
  1 + i % 4, LEFT(UNHEX(SHA2(i, 256)), 20) FROM n
"""


@dataclasses.dataclass(frozen=True)
class BinlogSet:
    """A range of a server's binlog, from (file, start) to (file, end), with the numbers of its rows and transactions."""

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
    """Returns the current end of the binlog: the file's name and the offset in bytes."""
    try:
        cursor.execute("SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError:  # Servers before MySQL 8.2 know only the old statement.
        cursor.execute("SHOW MASTER STATUS")
    file, offset, *_ = cursor.fetchone()
    return str(file), int(offset)


def prepare(cursor: Any) -> None:
    """Creates the tables and procedures. The statements of this function are outside the measured ranges."""
    cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
    cursor.execute("USE bench")
    for name in ("oltp_1", "oltp_2", "bulk_1"):
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
        cursor.execute(TABLE.format(name=name))
    cursor.execute("DROP TABLE IF EXISTS varied_1, wide_1")
    cursor.execute(VARIED_TABLE)
    cursor.execute(WIDE_TABLE)
    cursor.execute("DROP PROCEDURE IF EXISTS oltp")
    cursor.execute(OLTP.format(row=ROW.format(seed="i")))
    cursor.execute("SET SESSION cte_max_recursion_depth = 10000000")


def make_oltp(cursor: Any, transactions: int) -> BinlogSet:
    """Creates a set of single-row transactions, half inserts and half updates, in a separate binlog file."""
    cursor.execute("FLUSH BINARY LOGS")
    file, start = position(cursor)
    cursor.execute("CALL oltp(%s)", (transactions,))
    end_file, end = position(cursor)
    assert end_file == file, "the set must fit one binlog file: raise max_binlog_size"
    return BinlogSet("oltp", file, start, end, transactions, transactions)


def make_bulk(cursor: Any, rows: int, statements: int) -> BinlogSet:
    """Creates `rows` row changes by multi-row inserts and updates, in a separate binlog file. Each statement changes `rows / statements`
    rows.
    """
    change = "UPDATE bulk_1 SET k = k + 1 ORDER BY id LIMIT %s"
    insert = BULK.format(rows=rows // statements, row=ROW.format(seed="i"))
    return _made(cursor, "bulk", (insert, change), rows, statements)


def make_varied(cursor: Any, rows: int, statements: int) -> BinlogSet:
    """Creates a set as `make_bulk` does, but in the varied table."""
    change = "UPDATE varied_1 SET details = JSON_SET(details, '$.lines', 10), price = price + 1 ORDER BY id LIMIT %s"
    return _made(cursor, "varied", (VARIED.format(rows=rows // statements), change), rows, statements)


def make_wide(cursor: Any, rows: int, statements: int) -> BinlogSet:
    """Creates a set as `make_bulk` does, but in the wide table."""
    change = "UPDATE wide_1 SET details = JSON_SET(details, '$.lines', 10), price = price + 1 ORDER BY id LIMIT %s"
    return _made(cursor, "wide", (WIDE.format(rows=rows // statements), change), rows, statements)


def _made(cursor: Any, name: str, changes: tuple[str, str], rows: int, statements: int) -> BinlogSet:
    """Creates a set. `changes` are two statements: one inserts `rows / statements` rows, and the other updates as many rows as its
    argument says.
    """
    insert, update = changes
    cursor.execute("FLUSH BINARY LOGS")
    file, start = position(cursor)
    made = 0
    for number in range(statements):
        made += cursor.execute(update, (rows // statements,)) if number % 3 == 2 else cursor.execute(insert)
    end_file, end = position(cursor)
    assert end_file == file, "the set must fit one binlog file: raise max_binlog_size"
    return BinlogSet(name, file, start, end, made, statements)
