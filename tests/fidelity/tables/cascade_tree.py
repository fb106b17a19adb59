"""Provides a tree of tables with foreign keys, and random statements on it. No row event shows what the server then does to child rows."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

DATABASE = "family"
IDS = 9
TABLES = (
    "CREATE TABLE g (id int PRIMARY KEY, t varchar(20))",
    """CREATE TABLE p (id int PRIMARY KEY, g_id int, code varchar(8) CHARACTER SET utf8mb4 NOT NULL, UNIQUE (code),
       FOREIGN KEY (g_id) REFERENCES g (id) ON DELETE CASCADE ON UPDATE CASCADE)""",
    """CREATE TABLE c (id int PRIMARY KEY, p_id int, p_code varchar(8) CHARACTER SET utf8mb4, n decimal(10,2), at timestamp(3) NULL
       DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
       FOREIGN KEY (p_id) REFERENCES p (id) ON DELETE SET NULL ON UPDATE CASCADE,
       FOREIGN KEY (p_code) REFERENCES p (code) ON DELETE CASCADE ON UPDATE CASCADE)""",
    "CREATE TABLE e (id int PRIMARY KEY, c_id int, FOREIGN KEY (c_id) REFERENCES c (id) ON DELETE CASCADE ON UPDATE SET NULL)",
    "CREATE TABLE l (c_id int, t varchar(20), FOREIGN KEY (c_id) REFERENCES c (id) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE k (a int, b varchar(4), t int, PRIMARY KEY (a, b))",
    """CREATE TABLE kk (x int, y varchar(4), z int, t int, PRIMARY KEY (x, y, z),
       FOREIGN KEY (x, y) REFERENCES k (a, b) ON DELETE CASCADE ON UPDATE CASCADE)""",
    """CREATE TABLE kn (id int PRIMARY KEY, x int, y varchar(4),
       FOREIGN KEY (x, y) REFERENCES k (a, b) ON DELETE SET NULL ON UPDATE SET NULL)""",
    "CREATE TABLE s (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES s (id) ON DELETE CASCADE)",
    """CREATE TABLE s2 (id int PRIMARY KEY, up int, s_id int, FOREIGN KEY (up) REFERENCES s2 (id) ON DELETE SET NULL,
       FOREIGN KEY (s_id) REFERENCES s (id) ON DELETE CASCADE ON UPDATE CASCADE)""",
)
# MINIMAL images lack two things: the value of a unique key other than the primary key when its row is deleted, and the columns of a child
# whose own key a statement changes.
TABLES_OF_PRIMARY_KEYS = tuple(
    text.replace(
        """ON DELETE SET NULL ON UPDATE CASCADE,
       FOREIGN KEY (p_code) REFERENCES p (code) ON DELETE CASCADE ON UPDATE CASCADE)""",
        "ON DELETE SET NULL ON UPDATE CASCADE)",
    )
    for text in TABLES
)
KEYS_OF_CHILDREN = re.compile(r"UPDATE (?:p|c|s) SET (?:code = \S+, )?id|ON DUPLICATE KEY")
NAMES = ("g", "p", "c", "e", "l", "k", "kk", "kn", "s", "s2")


def statements(seed: int, count: int) -> Iterator[str]:
    """Returns random statements, of which the server refuses some."""
    chance = random.Random(seed)  # noqa: S311  not a secret
    for _ in range(count):
        yield from _some(chance)


def _some(chance: random.Random) -> list[str]:
    kind = chance.random()
    if kind < 0.15:
        return [
            "BEGIN",
            *(_one(chance) for _ in range(chance.randrange(2, 7))),
            chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]),
        ]
    if kind < 0.2:
        return ["SET foreign_key_checks = 0", _one(chance), "SET foreign_key_checks = 1"]
    return [_one(chance)]


def _one(chance: random.Random) -> str:
    def some() -> int:
        return chance.randrange(1, IDS)

    def maybe() -> str:
        return chance.choice([str(some()), str(some()), str(some()), "NULL"])

    def word() -> str:
        return f"'w{chance.randrange(1, 7)}'"

    inserts = [
        f"INSERT INTO g VALUES ({some()}, 't{some()}')",
        f"INSERT INTO p VALUES ({some()}, {maybe()}, {word()})",
        f"INSERT INTO p VALUES ({some()}, {maybe()}, {word()})",
        f"INSERT INTO c (id, p_id, p_code, n) VALUES ({some()}, {maybe()}, {chance.choice([word(), 'NULL'])}, {some()}.5)",
        f"INSERT INTO c (id, p_id, n) SELECT {some()}, max(id), 1 FROM p",
        f"INSERT INTO e VALUES ({some()}, {maybe()})",
        f"INSERT INTO l VALUES ({maybe()}, 't{some()}')",
        f"INSERT INTO k VALUES ({some()}, {word()}, {some()})",
        f"INSERT INTO kk SELECT a, b, {some()}, {some()} FROM k ORDER BY t LIMIT 1",
        f"INSERT INTO kn SELECT {some()}, a, b FROM k ORDER BY t DESC LIMIT 1",
        f"INSERT INTO s VALUES ({some()}, {maybe()})",
        f"INSERT INTO s2 VALUES ({some()}, {maybe()}, {maybe()})",
    ]
    others = [
        f"DELETE FROM {chance.choice(['g', 'p', 'p', 'c', 'e', 's', 's2', 'kn'])} WHERE id = {some()}",
        f"DELETE FROM {chance.choice(['g', 'p', 'c', 's'])} WHERE id IN ({some()}, {some()}, {some()})",
        f"DELETE FROM k WHERE a = {some()}",
        f"DELETE FROM l WHERE c_id = {some()} LIMIT 1",
        f"UPDATE {chance.choice(['g', 'p', 'p', 'c', 's'])} SET id = {some()} WHERE id = {some()}",
        f"UPDATE g SET id = id + {IDS} WHERE id = {some()}",
        f"UPDATE p SET code = {word()} WHERE id = {some()}",
        f"UPDATE p SET code = {word()}, id = {some()}, g_id = {maybe()} WHERE id = {some()}",
        f"UPDATE c SET p_id = {maybe()}, n = n + 1 WHERE id = {some()}",
        f"UPDATE e SET c_id = {maybe()} WHERE id = {some()}",
        f"UPDATE k SET a = {some()}, b = {word()} WHERE a = {some()} LIMIT 1",
        f"UPDATE kk SET t = t + 1, z = {some()} WHERE z = {some()} LIMIT 1",
        f"UPDATE s SET up = {maybe()} WHERE id = {some()}",
        f"UPDATE s2 SET up = {maybe()}, s_id = {maybe()} WHERE id = {some()}",
        f"REPLACE INTO p VALUES ({some()}, {maybe()}, {word()})",
        f"REPLACE INTO c (id, p_id) VALUES ({some()}, {maybe()})",
        f"REPLACE INTO s VALUES ({some()}, {maybe()})",
        f"INSERT INTO p VALUES ({some()}, NULL, {word()}) ON DUPLICATE KEY UPDATE id = {some()}",
        f"DELETE c, e FROM c JOIN e ON e.c_id = c.id WHERE c.id = {some()}",
    ]
    return chance.choice(inserts if chance.random() < 0.55 else others)
