"""Reads the statements of corpus/*.sql. A file is a group, whose statements run in order, in a separate database.

A statement ends with a semicolon at the end of a line. A line `--@ mysql80 mariadb114` names the servers to which the following statements
apply. `--@ all` names every server. A line `--@client sjis` names the charset in which they are sent, after SET NAMES. A group may have
statements that a server refuses. These are in no binlog and change nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from sluice.cdc_engine.binlog.charsets.collations import CHARSETS

FOLDER = Path(__file__).parent / "corpus"
ALL, CLIENT = "all", "--@client "
LIKE = {"mysql9": ("mysql80",)}  # Server → other servers whose statements it also gets.


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of statements. `statements` has each statement as it is sent, with the servers to which it applies. An empty set means every
    server.
    """

    name: str
    statements: tuple[tuple[bytes, frozenset[str]], ...]

    @property
    def database(self) -> str:
        return f"ddl_{self.name}"

    def of(self, server: str) -> list[bytes]:
        known = {server, *LIKE.get(server, ())}
        return [statement for statement, servers in self.statements if not servers or known & servers]


@functools.cache
def groups() -> tuple[Group, ...]:
    return tuple(Group(path.stem, tuple(_statements(path))) for path in sorted(FOLDER.glob("*.sql")))


def _statements(path: Path) -> list[tuple[bytes, frozenset[str]]]:
    found: list[tuple[bytes, frozenset[str]]] = []
    servers: frozenset[str] = frozenset()
    codec = "utf-8"
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith(CLIENT):
            name = line.removeprefix(CLIENT).strip()
            codec = CHARSETS[name].codec
            found.append((f"SET NAMES {name}".encode(), servers))
        elif line.startswith("--@"):
            names = line[3:].split()
            servers = frozenset() if names == [ALL] else frozenset(names)
        else:
            lines.append(line)
            if line.endswith(";"):
                found.append(("\n".join(lines)[:-1].encode(codec), servers))
                lines = []
    return found
